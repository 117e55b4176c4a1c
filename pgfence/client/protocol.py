"""What a worker and the database say to each other, written once for every driver. No I/O.

Each function is a generator: it yields steps, a driver carries them out and sends the reply back.
A driver throws `Failed` for what the database or the connection reported, and any other exception
as it is. SQL is calls of pgfence's functions, with $1 placeholders.

    Batch(calls)          run the calls, in one round trip if the driver can; reply: rows of each.
                          On a connection of ours they get a READ COMMITTED transaction of their
                          own, which stays open if `begin` is set; on a caller's connection they run
                          in the caller's transaction
    Work()                run the caller's function in the open transaction. Reply: what it left of
                          the transaction, a `Left`
    Commit()              end the transaction. Reply: `Left.ABORTED` where the server undid it,
                          because a statement had failed in it
    Rollback()            undo it
    Listen(channel)       LISTEN. Reply: whether notifications come; behind a pooler they do not
    Wait(seconds)         until a notification comes, or so long
    Sleep(seconds)        so long, or until the caller has a reason to wake up
    Run(function)         call it: it may wait for a lock service, so a task leaves it to a thread
    Reopen()              a new connection in place of a lost one
    On(session, steps)    carry out steps on another session, that of the other database where the
                          registry is not the resource's; reply: their result
"""

import logging
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

from pgfence import errors
from pgfence.coordinators.protocol import Standing
from pgfence.model.bundle import TrustBundle, follow_chain
from pgfence.model.clocks import Reading
from pgfence.model.lease import Ownership
from pgfence.model.outcome import Coordinates, Outcome
from pgfence.model.receipt import NOWHERE, Position, Receipt
from pgfence.model.verdict import Verdict

#: The schema that this version was built for: the head of the migrations.
SCHEMA_VERSION = "0001_baseline"

Row = Sequence[Any]
_log = logging.getLogger("pgfence.client")
_T = TypeVar("_T")


class Call(NamedTuple):
    """One statement: its text, with $1 placeholders, and its parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


class Batch(NamedTuple):
    """Calls that need not wait for each other.

    When they take longer than `within` seconds they are cancelled (SQLSTATE 57014), and when the
    server does not answer to that either, the connection is lost.
    """

    calls: tuple[Call, ...]
    begin: bool = False
    within: float | None = None


class Work(NamedTuple):
    """The caller's own statements."""


class Commit(NamedTuple):
    """End the transaction."""


class Rollback(NamedTuple):
    """Undo the transaction."""


class Listen(NamedTuple):
    """Hear the notifications of a channel."""

    channel: str


class Wait(NamedTuple):
    """Wait for a notification."""

    seconds: float


class Sleep(NamedTuple):
    """Wait for time to pass."""

    seconds: float


class Run(NamedTuple):
    """Call a function that may wait for something other than the database."""

    function: Callable[[], object]


class Reopen(NamedTuple):
    """Replace a lost connection."""


class On(NamedTuple):
    """Steps for another session of the same driver."""

    session: Any
    steps: "Steps[Any]"


Step = Batch | Work | Commit | Rollback | Listen | Wait | Sleep | Run | Reopen | On
Steps = Generator[Step, Any, _T]


class Left(StrEnum):
    """What the caller's function left of the transaction."""

    OPEN = "OPEN"
    ABORTED = "ABORTED"
    ENDED = "ENDED"


class Failed(Exception):  # noqa: N818 - a report, turned into an error by rethrow()
    """A step failed. `__cause__` is the driver's own exception.

    `lost` says that the connection is of no more use, so that whether the step took effect may be
    unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        lost: bool,
        sqlstate: str | None = None,
        detail: str | None = None,
        hint: str | None = None,
        rule: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.lost = lost
        self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint
        self.rule = rule

    @classmethod
    def of(cls, error: Exception, *, lost: bool) -> Self:
        """The report of what a driver raised, from which it is to be raised."""
        said = errors.said_by(error)
        return cls(
            said.message,
            lost=lost or said.fatal,
            sqlstate=said.sqlstate,
            detail=said.detail,
            hint=said.hint,
            rule=said.rule,
        )

    def rethrow(self) -> NoReturn:
        """Raise what the caller gets to see: our exception for our SQLSTATEs, else the driver's."""
        ours = errors.from_sqlstate(self.sqlstate, self.message, self.detail, self.hint, self.rule)
        cause = self.__cause__ or self
        if ours is not None:
            raise ours from cause
        raise cause from cause.__cause__


class Request(NamedTuple):
    """What a worker asks the registry for."""

    request_id: str
    resource: str
    operation_class: str
    operation_root: str
    continues_root: str
    ttl_ms: int
    #: By way of which coordinator (R37).
    coordinator: str = "postgres"


class Answer(NamedTuple):
    """A row of type `pgfence_registry.answer`, and when the question was sent."""

    asked_at: float
    state: str
    request_id: str | None
    resource: str | None
    lease: str | None
    fence_token: int | None
    token: str | None
    grant_digest: str | None
    ttl_ms: int | None
    lease_ends_at: datetime | None
    remaining_ms: int | None
    look_again_ms: int | None
    wake_channel: str | None
    reason: str | None
    #: With the token: refusals of this resource are let through (R28).
    in_shadow: bool | None = None

    @classmethod
    def from_row(cls, row: Row, asked_at: float = inf) -> Self:
        """Read a row of `select * from pgfence_registry.look(...)` and its like."""
        return cls(asked_at, *row)

    @property
    def ends_at(self) -> float:
        """When the lease ends on the clock that `asked_at` is of, at the earliest."""
        return self.asked_at + (self.remaining_ms or 0) / 1000

    def applied_to(self, ownership: Ownership, now: float) -> Ownership:
        """What the registry's word makes of the worker's belief."""
        if self.state == "HELD":
            return ownership.confirmed(now, self.asked_at, (self.remaining_ms or 0) / 1000)
        if self.state == "RELEASED":
            return ownership.released(now)
        return ownership.ended(now, self.state)

    def prolonged(self, ownership: Ownership, now: float) -> Ownership:
        """The same while nothing shows it to the database yet: how long the lease lasts."""
        if self.state == "HELD":
            return ownership.prolonged(now, self.asked_at, (self.remaining_ms or 0) / 1000)
        return self.applied_to(ownership, now)

    def not_held(self) -> errors.NotHeldError:
        """The error that says how this lease ended."""
        return errors.NotHeldError(
            Verdict(
                "NOT_HELD",
                reason=self.state,
                explanation=f"the registry says that request {self.request_id} is {self.state}",
                resource=self.resource,
                fence_token=self.fence_token,
            )
        )


Clock = Callable[[], float]

#: Tries after a serialization failure or a deadlock that came before the caller's function ran.
_ATTEMPTS = 3
_TRY_AGAIN = frozenset({"40001", "40P01"})
#: The same, or the call was cancelled, or waited too long for a lock: a request is asked again.
_ASK_AGAIN = _TRY_AGAIN | {"57014", "55P03"}
#: Schema or function does not exist; permission denied.
_NOT_INSTALLED, _NOT_ALLOWED = frozenset({"3F000", "42883"}), "42501"
_TRUST_BUNDLE = "select document, digest, pg_catalog.clock_timestamp() from pgfence.trust_bundle()"
_TRUST_CHAIN = "select version, document, signatures from pgfence.trust_chain($1)"
#: The server ended a session that was idle, or a transaction that was open, for too long.
_ENDED_BY_TIMEOUT = frozenset({"25P03", "25P04"})
_LOST_IN_WORK = "the lease was lost while the work function ran: nothing was written"
#: Pauses, in seconds, between attempts to reach a database that does not answer.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: The same where no notification comes, so that a waiter has to look.
_FIRST_LOOK, _LONGEST_LOOK = 0.01, 0.25
#: Seconds that a call which may wait for a lock gets, and a decided grant to be signed.
_SHORTEST_CALL, _LONGEST_CALL, _SIGNING = 1.0, 30.0, 3.0
#: Seconds that a renewal gets at least, also where a third of the lease is less.
_SHORTEST_RENEWAL = 0.25


def ask(call: Call, clock: Clock, within: float | None = None) -> Steps[Answer]:
    """One question to the registry."""
    asked_at = clock()
    (rows,) = yield Batch((call,), within=within)
    return Answer.from_row(rows[0], asked_at)


def _rows(call: Call) -> Steps[Sequence[Row]]:
    """The rows of a call; what fails is raised as the caller gets to see it."""
    try:
        (rows,) = yield Batch((call,))
    except Failed as failed:
        failed.rethrow()
    found: Sequence[Row] = rows
    return found


def _reopening(steps: Callable[[], Steps[_T]]) -> Steps[_T]:
    """Take steps, and once more on a new connection if the old one was lost."""
    try:
        try:
            return (yield from steps())
        except Failed as failed:
            if not failed.lost:
                raise
        yield Reopen()
        return (yield from steps())
    except Failed as failed:
        failed.rethrow()


def request(r: Request) -> Call:
    """Ask for a resource; again and again while the answer is WAIT or SIGNING (R34, R36)."""
    return Call(
        "select * from pgfence_registry.request($1, $2, $3, $4, $5, $6, $7)",
        (
            r.request_id, r.resource, r.operation_class, r.operation_root, r.ttl_ms,
            r.continues_root, r.coordinator,
        ),
    )  # fmt: skip


def _always() -> Standing:
    return Standing.HELD


class _Waiting:
    """Waits for a wake-up so that none is lost: first LISTEN, after which the caller asks again
    (R36). Where notifications do not come, it lets the caller look every so often.
    """

    def __init__(self) -> None:
        self._channel: str | None = None
        self._told = True
        self._look = _FIRST_LOOK

    def reconnected(self) -> None:
        """The connection is a new one, which does not listen."""
        self._channel = None

    def look_soon(self) -> None:
        """What is waited for will not take long."""
        self._look = _FIRST_LOOK

    def wait(self, channel: str | None, seconds: float) -> Steps[None]:
        """Wait at most so long."""
        if channel and channel != self._channel:
            self._told = yield Listen(channel)
            self._channel = channel
        elif self._told:
            yield Wait(seconds)
        else:
            yield Sleep(min(seconds, self._look))
            self._look = min(2 * self._look, _LONGEST_LOOK)


def acquire(
    wanted: Request, timeout: float | None, clock: Clock, standing: Callable[[], Standing] = _always
) -> Steps[Answer]:
    """Ask until the resource is ours: the answer is HELD, with the signed grant.

    standing: how the session at the lock service stands, whose key holds the resource.

    A lost reply is answered by asking again with the same request ID on a new connection (R34).

    Raises `AcquireTimeoutError` after `timeout` seconds, or when the database has not answered for
    as long as the lease would last, and `ClaimLostError` when the session at the lock service is
    over; the request is withdrawn. Raises `NotHeldError` when the lease of this request is over.
    """
    until = inf if timeout is None else clock() + timeout
    if wanted.coordinator != "postgres":
        # A key that holds gets three seconds longer to be seen.
        until = max(until, clock() + _SIGNING)
    waiting = _Waiting()
    decided = False
    silent_since = inf
    pause = _FIRST_PAUSE
    while True:
        try:
            if silent_since < inf:
                yield Reopen()
                waiting.reconnected()
            within = min(max(until - clock(), _SHORTEST_CALL), _LONGEST_CALL)
            answer = yield from ask(request(wanted), clock, within)
            silent_since, pause, why = inf, _FIRST_PAUSE, answer.reason
            if standing() is Standing.LOST:
                until = -inf
            elif answer.state == "HELD" and answer.token:
                return answer
            if answer.state not in ("WAIT", "SIGNING", "HELD"):
                raise answer.not_held()
            if answer.state == "SIGNING":
                why = "it is granted and not signed yet: is a registry process running?"
                if not decided and until > -inf:
                    decided, until = True, max(until, answer.asked_at + _SIGNING)
                    waiting.look_soon()
            if clock() < until:
                patience = min((answer.look_again_ms or 0) / 1000, until - clock())
                yield from waiting.wait(answer.wake_channel, patience)
                continue
        except Failed as failed:
            if failed.lost:
                silent_since = min(silent_since, clock())
            elif failed.sqlstate in _ASK_AGAIN:
                # The call waits for a transaction of the old owner, and was cancelled for that.
                silent_since = inf
            else:
                failed.rethrow()
            why = failed.message
            if clock() + pause < min(until, silent_since + wanted.ttl_ms / 1000):
                yield Sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
        with suppress(Failed):
            if silent_since < inf:
                yield Reopen()
            yield from give_up(wanted.request_id, clock)
        if standing() is Standing.LOST:
            raise errors.ClaimLostError(
                f"the session at {wanted.coordinator} ended before {wanted.resource} was granted"
            )
        raise errors.AcquireTimeoutError(f"{wanted.resource} did not become ours in time: {why}")


def give_up(request_id: str, clock: Clock) -> Steps[Answer]:
    """Withdraw a request, or release what it got, on whatever connection there is."""
    call = Call("select * from pgfence_registry.withdraw($1)", (request_id,))
    return (yield from ask(call, clock, _SHORTEST_CALL))


Move = Callable[[Ownership, float], Ownership]
#: Replaces the worker's belief by what a move makes of it now, and returns it.
Change = Callable[[Move], Ownership]


class Renewal(NamedTuple):
    """How a lease is renewed within so many seconds, and when at the latest."""

    renew: Callable[[float], Steps[Answer]]
    until: float = inf


def keep(
    lease: str,
    ttl_ms: int,
    change: Change,
    clock: Clock,
    standing: Callable[[], Standing] = _always,
    next_renewal: Callable[[], Renewal] | None = None,
) -> Steps[None]:
    """Renew at a third of the lease until it is over or the worker has given it back.

    While the session at the lock service is in doubt nothing is renewed: whoever holds the resource
    there now need not wait for longer than what was confirmed before.
    next_renewal: where calling renew() is not all there is to it.
    """
    call = Call("select * from pgfence_registry.renew($1)", (lease,))
    plain = Renewal(lambda within: ask(call, clock, within))
    while not (ownership := change(Ownership.at)).is_final:
        renewal = next_renewal() if next_renewal else plain
        left = min(ownership.deadline, renewal.until) - clock()
        # Jitter, so that workers that started together do not renew together.
        yield Sleep(max(0.0, left / 3 * random.uniform(0.9, 1.0)))  # noqa: S311
        if standing() is Standing.HELD and not change(Ownership.renewing).is_final:
            yield from _renew(lease, ttl_ms, change, renewal)


def _renew(lease: str, ttl_ms: int, change: Change, renewal: Renewal) -> Steps[None]:
    """Ask until the registry answers or the lease is over; doubt in between (R42)."""
    lost = False
    pause = _FIRST_PAUSE
    while True:
        try:
            if lost:
                yield Reopen()
                lost = False
            answer = yield from renewal.renew(max(ttl_ms / 3000, _SHORTEST_RENEWAL))
        except Failed as failed:
            _log.warning("lease %s: renewing failed: %s", lease, failed.message)
            lost = lost or failed.lost
            if change(Ownership.doubted).is_final:
                return
            yield Sleep(pause)
            if change(Ownership.at).is_final:
                return
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            change(answer.applied_to)
            return


def prove(
    lease: str,
    issued_after: int,
    renewed: Callable[[Answer], object],
    clock: Clock,
    within: float,
) -> Steps[tuple[Answer, Answer]]:
    """Renew, and ask for a status proof that is later than the one before (R13).

    issued_after: when that one was issued, in microseconds on the registry's clock; 0 for the
    first. renewed: called with the answer to the renewal. Returns that, and the answer with the
    proof, of which `remaining_ms` is left; the second has no token where the lease is over. Fails
    when the proof is not signed within so many seconds.
    """
    renewing = Call("select * from pgfence_registry.renew($1)", (lease,))
    asking = Call("select * from pgfence_registry.prove($1, $2)", (lease, issued_after))
    asked_at = clock()
    until = asked_at + within
    renewal, proven = yield Batch((renewing, asking), within=within)
    answer, proof = Answer.from_row(renewal[0], asked_at), Answer.from_row(proven[0], asked_at)
    renewed(answer)
    waiting = _Waiting()
    while proof.state == "SIGNING":
        patience = min((proof.look_again_ms or 0) / 1000, until - clock())
        if patience <= 0:
            raise Failed("no registry process has signed the status proof", lost=False)
        yield from waiting.wait(proof.wake_channel, patience)
        proof = yield from ask(asking, clock, max(until - clock(), _SHORTEST_RENEWAL))
    return answer, proof


def release(lease: str, ttl_ms: int, clock: Clock) -> Steps[Answer]:
    """Give a lease back; on a new connection if the old one is lost.

    Takes no longer than the lease would last: by then it has ended by itself.
    """
    call = Call("select * from pgfence_registry.release($1)", (lease,))
    within = min(max(ttl_ms / 1000, _SHORTEST_CALL), _LONGEST_CALL)
    return (yield from _reopening(lambda: ask(call, clock, within)))


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


#: One statement, so that the look costs no round trip with a driver that has no pipeline (R54).
_LOOK_AND_APPLY = "select * from pgfence_registry.look($4), pgfence.fenced_apply($1, $2, $3)"
#: Columns of the first of the two.
_LOOK = len(Answer._fields) - 1


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
    whether the lease is over by now; then work that is done or was stopped is undone. in_doubt:
    called when work is done. Until then nothing stands whatever happens; from then on only an
    answer says whether it does, and an interrupt may come before it.

    Raises `MutationUnknownError` if the answer to COMMIT was lost (R44), `LeaseEndedError` if the
    lease ended while the transaction was open, and what the caller's function raised. After any of
    these but the first, nothing of it stands.
    """
    answer, verdicts = yield from _begin(segments, clock)
    if answer is not None:
        change(answer.applied_to)
    refused = [place for place, verdict in enumerate(verdicts) if verdict.refuses][:1]
    if refused and len(segments) > 1:
        # The others may have been accepted. Ask for it alone, so that its evidence can stand.
        yield from _roll_back()
        segments = [segments[refused[0]]]
        _, verdicts = yield from _begin(segments, clock)
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


def _begin(segments: Sequence[Segment], clock: Clock) -> Steps[tuple[Answer | None, list[Verdict]]]:
    """BEGIN, look and fenced_apply: again after a conflict, and on a new connection when the old
    one was lost. The caller's work has not begun, and without COMMIT nothing stands.
    """
    lost = False
    for attempt in range(_ATTEMPTS):
        try:
            if lost:
                yield Reopen()
            asked_at = clock()
            replies = yield Batch(_calls(segments), begin=True)
        except Failed as failed:
            yield from _roll_back()
            lost = failed.lost
            if attempt == _ATTEMPTS - 1 or not (lost or failed.sqlstate in _TRY_AGAIN):
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


def advance(token: str, proof: str | None = None) -> Steps[Verdict]:
    """Raise the fence without a segment (R21). Repeating it is harmless, so lost answers are.

    proof: the status proof, where the registry is in another database.
    """
    call = Call("select * from pgfence.advance($1, $2)", (token, proof))
    for attempt in range(_ATTEMPTS):
        try:
            (rows,) = yield Batch((call,), begin=True)
            yield Commit()
        except Failed as failed:
            yield from _roll_back()
            if attempt == _ATTEMPTS - 1 or not (failed.lost or failed.sqlstate in _TRY_AGAIN):
                failed.rethrow()
            if failed.lost:
                yield Reopen()
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
        yield Batch(tuple(notes), within=_SHORTEST_CALL)
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
    for attempt in range(_ATTEMPTS):
        try:
            (rows,) = yield Batch((call,), within=_LONGEST_CALL)
        except Failed as failed:
            if attempt == _ATTEMPTS - 1 or not (failed.lost or failed.sqlstate in _TRY_AGAIN):
                failed.rethrow()
            if failed.lost:
                yield Reopen()
        else:
            return Outcome.from_row(rows[0])
    raise AssertionError("unreachable")


def position(resource: str) -> Steps[Position]:
    """Where the receipts of a resource end."""
    rows = yield from _rows(Call("select * from pgfence.position($1)", (resource,)))
    return Position(*rows[0]) if rows else NOWHERE


def operation_receipts(
    resource: str, operation_root: str, after: int
) -> Steps[list[tuple[int, str]]]:
    """Numbers and payload digests of the receipts of an operation and of those that it took up:
    the first ten thousand after number `after`.
    """
    call = Call(
        "select segment_number, payload_digest from pgfence.operation_receipts($1, $2, $3)",
        (resource, operation_root, after),
    )
    return [(number, digest) for number, digest in (yield from _rows(call))]


def refuse_lost(resource: str, acknowledged: Sequence[Receipt]) -> Steps[None]:
    """Raise `AcknowledgedSegmentsLostError` if the database has lost any of these receipts (R47).

    acknowledged: receipts of one resource, in the order of its chain: if the last one is there, so
    are those before it.
    """
    try:
        if acknowledged and (yield from _missing(resource, acknowledged[-1:])):
            missing = yield from _missing(resource, acknowledged)
            at = yield from position(resource)
            lost = tuple(receipt for receipt in acknowledged if receipt.digest in missing)
            raise errors.AcknowledgedSegmentsLostError(resource, lost, at)
    except Failed as failed:
        failed.rethrow()


def _missing(resource: str, receipts: Sequence[Receipt]) -> Steps[set[str]]:
    """The digests of those receipts that the database neither has nor has pruned."""
    known = (
        [receipt.operation_root for receipt in receipts],
        [receipt.segment_seq for receipt in receipts],
        [receipt.digest for receipt in receipts],
    )
    (rows,) = yield Batch(
        (Call("select digest from pgfence.missing_receipts($1, $2, $3, $4)", (resource, *known)),)
    )
    return {digest for (digest,) in rows}


class Arrangement(NamedTuple):
    """How a database and its registry stand to each other."""

    audience: str | None
    registry_is_local: bool
    clock_tolerance_ms: int


def arrangement() -> Steps[Arrangement]:
    """Where the registry of a database is."""
    (row,) = yield from _rows(Call("select * from pgfence.arrangement()"))
    return Arrangement(*row)


def read_clock(clock: Clock) -> Steps[Reading]:
    """The server's clock."""
    asked_at = clock()
    ((server_time,),) = yield from _rows(Call("select pg_catalog.clock_timestamp()"))
    return Reading(asked_at, server_time.timestamp(), clock())


class Introduction(NamedTuple):
    """What a client learns about a database before it does anything."""

    #: The trust bundle in force.
    bundle: TrustBundle
    #: The server's clock, and when it was asked on ours.
    server_time: datetime
    asked_at: float


def introduce(clock: Clock, bundle_digest: str | None = None) -> Steps[Introduction]:
    """Check that the schema fits this version of pgfence, and fetch the trust bundle.

    bundle_digest: SHA-256 in hex of a bundle that the client trusts; the one in force must be that
    one, or follow from it (R33). None: what is in force is trusted.

    Raises `SchemaVersionError`, `NoWorkloadError` for a role that may not use pgfence,
    `TrustRefusedError` if no bundle is installed or it cannot be read, and `BundleSplitError`.
    """
    try:
        (versions,) = yield Batch((Call("select pgfence.schema_version()"),))
    except Failed as failed:
        if failed.sqlstate in _NOT_INSTALLED:
            raise errors.SchemaVersionError(
                "pgfence is not installed in this database: run `pgfence migrate`"
            ) from failed.__cause__
        if failed.sqlstate == _NOT_ALLOWED:
            raise errors.NoWorkloadError(
                f"this login role may not use pgfence ({failed.message}): grant pgfence_app to a "
                "worker's role, pgfence_registry to that of a registry process"
            ) from failed.__cause__
        failed.rethrow()
    found = versions[0][0]
    if found != SCHEMA_VERSION:
        raise errors.SchemaVersionError(
            f"the database's pgfence schema is {found}, this client was built for "
            f"{SCHEMA_VERSION}: run `pgfence migrate`, or install the client that fits"
        )
    asked_at = clock()
    rows = yield from _rows(Call(_TRUST_BUNDLE))
    if not rows:
        raise errors.TrustRefusedError(
            "no trust bundle is installed: nothing can be granted", hint="Run: pgfence trust init"
        )
    document, digest, server_time = rows[0]
    bundle = TrustBundle.parse(document)
    if bundle.digest != digest:
        raise errors.BundleSplitError(
            f"the database calls its trust bundle {digest}, it is {bundle.digest}"
        )
    if bundle_digest not in (None, digest):
        try:
            bundle = yield from _follow_from(str(bundle_digest), digest)
        except Failed as failed:
            failed.rethrow()
    return Introduction(bundle, server_time, asked_at)


def _follow_from(digest: str, in_force: str) -> Steps[TrustBundle]:
    """The bundle in force, reached from an earlier one that is known by its digest."""
    for _, document, _ in (yield from _chain(1)):
        bundle = TrustBundle.parse(document)
        if bundle.digest == digest:
            return (yield from _follow(bundle))
    raise errors.BundleSplitError(
        f"the database's trust bundle is {in_force}, this client trusts {digest}, from which it "
        "does not follow: nothing was written"
    )


def follow(trusted: TrustBundle) -> Steps[TrustBundle]:
    """The bundle in force, reached link by link from one that the client trusts (R33).

    On a new connection if the old one is lost. Raises `BundleSplitError` when the database has
    another bundle of that version, only older ones, or a later one that does not follow.
    """
    return (yield from _reopening(lambda: _follow(trusted)))


def _follow(trusted: TrustBundle) -> Steps[TrustBundle]:
    chain = yield from _chain(trusted.version)
    if not chain:
        raise errors.BundleSplitError(
            f"this client trusts trust bundle {trusted.version}, which the database does not have: "
            "was it put back to an earlier state? Nothing was written"
        )
    (version, document, _), *links = chain
    if (version, document) != (trusted.version, trusted.document):
        raise errors.BundleSplitError(
            f"the database has another trust bundle {trusted.version} than this client, which "
            f"trusts {trusted.digest}: nothing was written"
        )
    try:
        return follow_chain(trusted, [(document, signatures) for _, document, signatures in links])
    except errors.TrustRefusedError as refused:
        raise errors.BundleSplitError(
            f"the database's trust bundle {chain[-1][0]} does not follow from bundle "
            f"{trusted.version}, which this client trusts ({refused}): nothing was written"
        ) from refused


def _chain(version: int) -> Steps[Sequence[Row]]:
    """The bundles of the database from a version on: version, document, signatures."""
    (rows,) = yield Batch((Call(_TRUST_CHAIN, (version,)),), within=_LONGEST_CALL)
    chain: Sequence[Row] = rows
    return chain
