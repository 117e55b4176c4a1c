"""Writing: fenced_apply with the caller's work, advance, and what is left when nobody knows."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple, NoReturn

from pgfence import errors
from pgfence.client.protocol.leases import Answer, Change
from pgfence.client.protocol.steps import (
    ATTEMPTS,
    LONGEST_CALL,
    SHORTEST_CALL,
    TRY_AGAIN,
    Batch,
    Call,
    Clock,
    Commit,
    Failed,
    Left,
    Reopen,
    Rollback,
    Row,
    Steps,
    Work,
    limit,
)
from pgfence.model.outcome import Coordinates, Outcome
from pgfence.model.verdict import Verdict

_log = logging.getLogger("pgfence.client")

#: The server ended a session that was idle, or a transaction that was open, for too long.
_ENDED_BY_TIMEOUT = frozenset({"25P03", "25P04"})
_CANCELLED = "57014"
_LOST_BEFORE_WORK = "the lease was lost before the work function ran: nothing was written"
_LOST_IN_ADVANCE = "the lease was lost while the fence was to be raised"
_LOST_IN_WORK = "the lease was lost while the work function ran: nothing was written"
#: One statement, so that the look costs no round trip with a driver that has no pipeline (R54).
_LOOK_AND_APPLY = "select * from pgfence_registry.look($4), pgfence.fenced_apply($1, $2, $3)"
#: Columns of the first of the two.
_LOOK = len(Answer._fields) - 1


class Proof(NamedTuple):
    """What takes the place of the look at the registry, where that is in another database (R13).

    token: the status proof; None where the grant itself must show that it is held. good_until:
    when the database stops to accept it, on our own clock.
    """

    token: str | None = None
    good_until: float = inf


class Segment(NamedTuple):
    """One call of `fenced_apply`."""

    token: str
    lease: str
    resource: str
    operation_root: str
    number: int
    payload: str
    payload_digest: str
    #: None where the registry is in this database and can be looked at.
    proof: Proof | None = None


def _calls(segments: Sequence[Segment]) -> tuple[Call, ...]:
    called = [(segment.token, segment.number, segment.payload) for segment in segments]
    proof = segments[0].proof
    if proof is not None:
        sql = "select * from pgfence.fenced_apply($1, $2, $3, $4)"
        return tuple(Call(sql, (*parameters, proof.token)) for parameters in called)
    sql = "select * from pgfence.fenced_apply($1, $2, $3)"
    looking = Call(_LOOK_AND_APPLY, (*called[0], segments[0].lease))
    return looking, *(Call(sql, parameters) for parameters in called[1:])


def _answers(
    segments: Sequence[Segment], replies: Sequence[Sequence[Row]], asked_at: float
) -> tuple[Answer | None, list[Verdict]]:
    """The registry's answer, unless it is elsewhere, and the verdicts."""
    (first,), *others = replies
    looked = None
    if segments[0].proof is None:
        looked, first = Answer.from_row(first[:_LOOK], asked_at), first[_LOOK:]
    return looked, [_verdict(first), *(_verdict(row) for (row,) in others)]


def apply(
    segments: Sequence[Segment],
    change: Change,
    clock: Clock,
    is_lost: Callable[[], bool],
    begins: Callable[[Sequence[Verdict]], object],
    in_doubt: Callable[[], object],
) -> Steps[list[Verdict]]:
    """Commit segments of one lease together, in a transaction of their own.

    The look at the registry and the calls go out with BEGIN (R54). Work runs only if one of them is
    ACCEPTED, or WOULD_REFUSE in shadow (R28). Returns their verdicts when all is committed; of a
    refusal, its verdict alone: then nothing was written but its evidence (R18).
    begins: called with the verdicts before work, which is for those that let write. is_lost:
    whether the lease is over by now; then work does not begin (R42), and what is done or was
    stopped is undone. in_doubt: called when work is done. Until then nothing stands whatever
    happens; from then on only an answer says whether it does, and an interrupt may come before it.

    Raises `MutationUnknownError` if the answer to COMMIT was lost (R44), `LeaseEndedError` if the
    lease ended while the transaction was open, and what the caller's function raised. After any of
    these but the first, nothing of it stands.
    """
    answer, verdicts = yield from _begin(segments, clock, is_lost)
    if answer is not None:
        change(answer.applied_to)
    refused = [place for place, verdict in enumerate(verdicts) if verdict.refuses][:1]
    if refused and len(segments) > 1:
        # The others may have been accepted. Ask for it alone, so that its evidence can stand.
        yield from _roll_back()
        segments = [segments[refused[0]]]
        _, verdicts = yield from _begin(segments, clock, lambda: False, within=LONGEST_CALL)
        if not verdicts[0].refuses:
            yield from _roll_back()
            raise errors.PgfenceError(f"segment {segments[0].number} was refused, and then was not")
    if not any(verdict.lets_write for verdict in verdicts):
        # Nothing hangs on this COMMIT but the evidence of a refusal.
        with suppress(Failed):
            yield Commit()
        return verdicts
    accepted = any(verdict.verdict == "ACCEPTED" for verdict in verdicts)
    if accepted and answer is not None and answer.state != "HELD":
        yield from _roll_back()
        raise errors.OwnershipUnknownError(
            f"the database accepts lease {segments[0].lease}, and the registry says {answer.state}"
        )
    ends_at = segments[0].proof.good_until if segments[0].proof else inf
    if answer is not None and answer.state == "HELD":
        ends_at = answer.ends_at
    begins(verdicts)
    left = yield from _work(ends_at, clock, is_lost)
    in_doubt()
    if left is Left.ENDED:
        raise _unknown(segments)
    try:
        left = yield Commit()
    except Failed as failed:
        if failed.sqlstate in _ENDED_BY_TIMEOUT or not failed.lost:
            _not_written(failed)
        raise _unknown(segments) from failed.__cause__
    except Exception as error:
        # Whatever else a driver raises says nothing of what the server did.
        raise _unknown(segments) from error
    if left is Left.ABORTED:
        raise _swallowed()
    return verdicts


def _begin(
    segments: Sequence[Segment],
    clock: Clock,
    is_lost: Callable[[], bool],
    within: float | None = None,
) -> Steps[tuple[Answer | None, list[Verdict]]]:
    """BEGIN, look and fenced_apply: again after a conflict, and on a new connection when the old
    one was lost. The caller's work has not begun, and without COMMIT nothing stands.

    within: None waits for the row lock while the lease lasts; the loss of the lease stops it.
    """
    lost = False
    for attempt in range(ATTEMPTS):
        try:
            if lost:
                yield Reopen()
            asked_at = clock()
            replies = yield Batch(_calls(segments), begin=True, within=within)
        except Failed as failed:
            yield from _roll_back()
            if is_lost():
                raise errors.LeaseEndedError(_LOST_BEFORE_WORK) from failed.__cause__
            lost = failed.lost
            if attempt == ATTEMPTS - 1 or not (lost or failed.sqlstate in TRY_AGAIN):
                _not_written(failed)
        else:
            return _answers(segments, replies, asked_at)
    raise AssertionError("unreachable")


def _verdict(row: Row) -> Verdict:
    """Read a verdict, and warn of a refusal that shadow lets through (R28)."""
    verdict = Verdict.from_row(row)
    if verdict.would_refuse is not None:
        _log.warning(
            "in shadow, so let through: %s%s: %s",
            verdict.would_refuse,
            f" ({verdict.reason})" if verdict.reason else "",
            verdict.explanation,
        )
    return verdict


def _work(ends_at: float, clock: Clock, is_lost: Callable[[], bool]) -> Steps[Left]:
    """Run the caller's function; whatever it raises undoes the transaction, and so does the loss of
    the lease, for which the function may have been stopped.

    ends_at: when what admitted the transaction ends, on our own clock.
    """
    if is_lost():
        # Whoever stops work had none to stop, and will not come again.
        yield from _roll_back()
        raise errors.LeaseEndedError(_LOST_BEFORE_WORK)
    try:
        left: Left = yield Work()
    except GeneratorExit:
        raise
    except Failed as failed:
        yield from _roll_back()
        if is_lost():
            raise errors.LeaseEndedError(_LOST_IN_WORK) from failed.__cause__
        if failed.lost and clock() >= ends_at:
            # The server ends such a session, but what it says may not come through a pooler.
            _lease_ended(failed)
        _not_written(failed)
    except BaseException:
        yield from _roll_back()
        raise
    if left is Left.ABORTED:
        yield from _roll_back()
        raise _swallowed()
    if left is Left.OPEN and is_lost():
        yield from _roll_back()
        raise errors.LeaseEndedError(_LOST_IN_WORK)
    return left


def _roll_back() -> Steps[None]:
    with suppress(Failed):
        yield Rollback()


def _swallowed() -> errors.PgfenceError:
    return errors.PgfenceError(
        "the work function caught a database error and went on: the transaction was undone"
    )


def _unknown(segments: Sequence[Segment]) -> errors.MutationUnknownError:
    first, *others = segments
    return errors.MutationUnknownError(
        first.resource,
        first.operation_root,
        first.number,
        first.payload_digest,
        tuple(segment.payload_digest for segment in others),
    )


def _not_written(failed: Failed) -> NoReturn:
    """Raise what made a transaction end without effect."""
    if failed.sqlstate in _ENDED_BY_TIMEOUT:
        _lease_ended(failed)
    failed.rethrow()


def _lease_ended(failed: Failed) -> NoReturn:
    raise errors.LeaseEndedError(
        f"the server ended the session, and nothing was written: {failed.message}"
    ) from failed.__cause__


def apply_within(segment: Segment, clock: Clock) -> Steps[Verdict]:
    """Look and call in the transaction that the caller has open and will end.

    Returns the verdict, also when it refuses.
    """
    asked_at = clock()
    try:
        replies = yield Batch(_calls([segment]))
    except Failed as failed:
        failed.rethrow()
    answer, (verdict,) = _answers([segment], replies, asked_at)
    if verdict.verdict == "ACCEPTED" and answer is not None and answer.state != "HELD":
        raise errors.OwnershipUnknownError(
            f"the database accepts lease {segment.lease}, and the registry says {answer.state}; "
            "roll the transaction back"
        )
    return verdict


def advance(
    token: str,
    is_lost: Callable[[], bool],
    clock: Clock,
    proof: str | None = None,
    until: float = inf,
) -> Steps[Verdict]:
    """Raise the fence without a segment (R21). Repeating it is harmless, so lost answers are.

    is_lost: whether the lease is over by now; its loss stops the wait for the row lock. proof: the
    status proof, where the registry is in another database. until: when that wait ends at the
    latest; it is then for LONGEST_CALL at most, and not stopped meanwhile. Raises
    `LeaseEndedError`, and `AcquireTimeoutError` when a wait with an end was in vain.
    """
    call = Call("select * from pgfence.advance($1, $2)", (token, proof))
    lost = False
    for attempt in range(ATTEMPTS):
        asked_at = clock()
        within = limit(until - asked_at) if until < inf else None
        try:
            if lost:
                yield Reopen(within or inf)
            (rows,) = yield Batch((call,), begin=True, within=within)
            yield Commit()
        except Failed as failed:
            yield from _roll_back()
            if is_lost():
                raise errors.LeaseEndedError(_LOST_IN_ADVANCE) from failed.__cause__
            silent = failed.lost and within and clock() >= asked_at + within
            if silent or (within and failed.sqlstate == _CANCELLED):
                raise errors.AcquireTimeoutError(
                    "it was granted, and the fence could not be raised in time, for which open "
                    f"transactions of earlier owners must end: {failed.message}"
                ) from failed.__cause__
            lost = failed.lost
            if attempt == ATTEMPTS - 1 or not (lost or failed.sqlstate in TRY_AGAIN):
                failed.rethrow()
        else:
            return _verdict(rows[0])
    raise AssertionError("unreachable")


def report(segments: Sequence[Segment]) -> Steps[None]:
    """Note in the database, on a new connection, that nobody knows what became of segments (R44).

    Best effort: where it fails, the caller's exception is all there is, and the log says so.
    """
    sql = "select pgfence.report_unknown($1, $2, $3)"
    notes = [Call(sql, (s.token, s.number, s.payload_digest)) for s in segments]
    try:
        yield Reopen()
        yield Batch(tuple(notes), within=SHORTEST_CALL)
    except Failed as failed:
        _log.error("%s, and that could not be noted: %s", _unknown(segments), failed.message)


def reconcile(asked: Coordinates, token: str | None, proof: str | None = None) -> Steps[Outcome]:
    """What became of a segment (R45). Waits for a transaction that is open on its resource.

    token: a newer grant of the caller's. proof: its status proof, where the registry is in another
    database. Repeating it is harmless, so lost answers are.
    """
    call = Call(
        "select * from pgfence.reconcile($1, $2, $3, $4, $5, $6)",
        (
            asked.resource, asked.operation_root, asked.segment_seq, asked.payload_digest, token,
            proof,
        ),
    )  # fmt: skip
    lost = False
    for attempt in range(ATTEMPTS):
        try:
            if lost:
                yield Reopen()
            (rows,) = yield Batch((call,), within=LONGEST_CALL)
        except Failed as failed:
            lost = failed.lost
            if attempt == ATTEMPTS - 1 or not (lost or failed.sqlstate in TRY_AGAIN):
                failed.rethrow()
        else:
            return Outcome.from_row(rows[0])
    raise AssertionError("unreachable")
