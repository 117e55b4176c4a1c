"""The protocol's generators against scripted replies: no database, no clock but ours."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from pgfence import errors
from pgfence.client import protocol
from pgfence.client.protocol import (
    Batch,
    Call,
    Failed,
    Left,
    Listen,
    Reopen,
    Rollback,
    Sleep,
    Step,
    Wait,
    Work,
)
from pgfence.coordinators.protocol import Standing
from pgfence.model.lease import Ownership, State
from pgfence.model.verdict import Verdict
from tests import rotation_cases as rotation

_T = TypeVar("_T")
REQUEST = protocol.Request("req-1", "invoice/1", "settle", "sha256:" + "0" * 64, "", 9000)
SEGMENT = protocol.Segment(
    "v4.public.x", "lease-1", "invoice/1", "sha256:" + "0" * 64, 1, "{}", "ab"
)
LOST = Failed("server closed the connection", lost=True)


def failed(sqlstate: str, *, lost: bool = False) -> Failed:
    failure = Failed("what the server said", lost=lost, sqlstate=sqlstate)
    failure.__cause__ = RuntimeError(sqlstate)
    return failure


def answer(state: str, **fields: Any) -> tuple[Any, ...]:
    names = protocol.Answer._fields[1:]
    return tuple(({"state": state} | fields).get(name) for name in names)


def verdict(name: str, reason: str | None = None) -> tuple[Any, ...]:
    return (name, reason, None, "invoice/1", 1, 1, 1, 1, "aa", "ab", datetime.now(UTC))


class Script:
    """Replies in order; an exception is thrown. Each step that is taken is written down."""

    def __init__(self, *replies: Any) -> None:
        self.now = 0.0
        self.replies = list(replies)
        self.steps: list[Step] = []
        #: Whether notifications come.
        self.woken = True
        self.ownership = Ownership()
        self.doubted = False
        self.begins: list[Verdict] = []

    def clock(self) -> float:
        return self.now

    def change(self, move: protocol.Move) -> Ownership:
        self.ownership = move(self.ownership, self.now)
        return self.ownership

    def is_lost(self) -> bool:
        return self.ownership.at(self.now).is_final

    def in_doubt(self) -> None:
        self.doubted = True

    def run(self, steps: protocol.Steps[_T]) -> _T:
        try:
            step = next(steps)
            while True:
                self.steps.append(step)
                reply = self._reply(step)
                step = steps.throw(reply) if isinstance(reply, BaseException) else steps.send(reply)
        except StopIteration as stop:
            assert not self.replies, "the script was not played to its end"
            result: _T = stop.value
            return result

    def _reply(self, step: Step) -> Any:
        if isinstance(step, Wait | Sleep):
            self.now += step.seconds
            return None
        if isinstance(step, Reopen | Rollback):
            return None
        if isinstance(step, Listen):
            return self.woken
        reply = self.replies.pop(0)
        return reply() if callable(reply) else reply

    def names(self) -> list[str]:
        """The steps by name; a batch by the functions that it calls."""
        names = []
        for step in self.steps:
            if isinstance(step, Batch):
                functions = [n for call in step.calls for n in re.findall(r"\.(\w+)\(", call.sql)]
                names.append("+".join((["begin"] if step.begin else []) + functions))
            else:
                names.append(type(step).__name__)
        return names


def one(*row: Any) -> list[list[tuple[Any, ...]]]:
    return [[row]]


def waiting(look_again_ms: int = 1000) -> list[list[tuple[Any, ...]]]:
    return one(*answer("WAIT", look_again_ms=look_again_ms, wake_channel="c", reason="held"))


HELD = one(*answer("HELD", lease="lease-1", token="v4.public.x", remaining_ms=9000))
SIGNING = one(*answer("SIGNING", look_again_ms=200, wake_channel="c"))
WITHDRAWN = one(*answer("WITHDRAWN"))


def test_r36_a_waiter_listens_then_asks_again_then_waits() -> None:
    script = Script(waiting(), waiting(), HELD)
    got = script.run(protocol.acquire(REQUEST, None, script.clock))
    assert got.token == "v4.public.x"
    assert script.names() == ["request", "Listen", "request", "Wait", "request"]


def test_r36_a_waiter_that_hears_nothing_looks_more_and_more_seldom() -> None:
    script = Script(*[waiting()] * 9, SIGNING, HELD)
    script.woken = False
    script.run(protocol.acquire(REQUEST, None, script.clock))
    assert [step.seconds for step in script.steps if isinstance(step, Sleep)] == [
        0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25, 0.01,
    ]  # fmt: skip
    assert not any(isinstance(step, Wait) for step in script.steps)


def test_r34_a_lost_reply_is_answered_by_asking_again_on_a_new_connection() -> None:
    script = Script(waiting(), LOST, waiting(), HELD)
    script.run(protocol.acquire(REQUEST, None, script.clock))
    assert script.names() == [
        "request", "Listen", "request", "Sleep", "Reopen", "request", "Listen", "request",
    ]  # fmt: skip
    asked = [step for step in script.steps if isinstance(step, Batch)]
    assert len({batch.calls for batch in asked}) == 1


def test_r36_a_waiter_that_gives_up_withdraws() -> None:
    script = Script(waiting(), waiting(), waiting(), waiting(), WITHDRAWN)
    with pytest.raises(errors.AcquireTimeoutError, match="did not become ours in time: held"):
        script.run(protocol.acquire(REQUEST, 1.5, script.clock))
    assert script.names()[-2:] == ["request", "withdraw"]
    assert script.now == 1.5


def test_a_resource_that_is_held_is_refused_at_once_on_request() -> None:
    script = Script(waiting(), WITHDRAWN)
    with pytest.raises(errors.AcquireTimeoutError):
        script.run(protocol.acquire(REQUEST, 0.0, script.clock))


def test_a_decided_grant_gets_time_to_be_signed_whatever_the_timeout() -> None:
    script = Script(SIGNING, SIGNING, HELD)
    assert script.run(protocol.acquire(REQUEST, 0.0, script.clock)).state == "HELD"


def test_a_registry_that_stays_away_ends_the_attempt_and_withdraws() -> None:
    script = Script(*[LOST] * 13, WITHDRAWN)
    with pytest.raises(errors.AcquireTimeoutError, match="server closed the connection"):
        script.run(protocol.acquire(REQUEST, None, script.clock))
    assert script.names()[-2:] == ["Reopen", "withdraw"]
    assert script.now <= REQUEST.ttl_ms / 1000


def test_a_new_connection_gets_no_more_than_is_left_of_the_timeout() -> None:
    """But a second, as the withdrawal does that comes after it."""
    script = Script(*[LOST] * 7, WITHDRAWN)
    with pytest.raises(errors.AcquireTimeoutError, match="server closed the connection"):
        script.run(protocol.acquire(REQUEST._replace(ttl_ms=60_000), 3.0, script.clock))
    reopened = [step.within for step in script.steps if isinstance(step, Reopen)]
    assert reopened == pytest.approx([2.95, 2.85, 2.65, 2.25, 1.45, 1.0, 1.0])


@pytest.mark.parametrize("sqlstate", ["57014", "55P03", "40001", "40P01"])
def test_a_request_that_waited_too_long_for_the_old_owner_s_transaction_is_asked_again(
    sqlstate: str,
) -> None:
    script = Script(*[failed(sqlstate)] * 40, HELD)
    assert script.run(protocol.acquire(REQUEST, None, script.clock)).state == "HELD"
    assert "Reopen" not in script.names()


@pytest.mark.parametrize("state", ["EXPIRED", "RELEASED", "SUPERSEDED", "WITHDRAWN", "UNKNOWN"])
def test_a_request_whose_lease_is_over_is_not_held(state: str) -> None:
    script = Script(one(*answer(state)))
    with pytest.raises(errors.NotHeldError) as caught:
        script.run(protocol.acquire(REQUEST, None, script.clock))
    assert caught.value.verdict.reason == state


def test_an_error_of_the_registry_is_typed() -> None:
    script = Script(failed("PF303"))
    with pytest.raises(errors.RequestConflictError) as caught:
        script.run(protocol.acquire(REQUEST, None, script.clock))
    assert isinstance(caught.value.__cause__, RuntimeError)


def accepted() -> list[list[tuple[Any, ...]]]:
    return answered("ACCEPTED")


def run_apply(
    *replies: Any, segments: Sequence[protocol.Segment] = (SEGMENT,)
) -> tuple[Script, Callable[[], list[Verdict]]]:
    script = Script(*replies)
    script.change(lambda o, now: o.confirmed(now, now, 5.0))
    steps = protocol.apply(
        segments,
        script.change,
        script.clock,
        script.is_lost,
        script.begins.extend,
        script.in_doubt,
    )
    return script, lambda: script.run(steps)


def test_r54_the_look_and_the_call_go_out_with_begin() -> None:
    script, go = run_apply(accepted(), Left.OPEN, None)
    assert go()[0].verdict == "ACCEPTED"
    assert script.names() == ["begin+look+fenced_apply", "Work", "Commit"]
    assert script.ownership.deadline == 9.0


SEGMENTS = [SEGMENT._replace(number=n, payload_digest=f"{n}") for n in (1, 2, 3)]


def answered(*names: str) -> list[list[tuple[Any, ...]]]:
    first, *others = names
    looked = answer("HELD", remaining_ms=9000)
    return [[(*looked, *verdict(first))], *([verdict(name)] for name in others)]


def test_r15_several_segments_are_asked_for_at_once_and_committed_together() -> None:
    script, go = run_apply(
        answered("REPLAYED", "ACCEPTED", "ACCEPTED"), Left.OPEN, None, segments=SEGMENTS
    )
    assert [v.verdict for v in go()] == ["REPLAYED", "ACCEPTED", "ACCEPTED"]
    assert script.names() == [
        "begin+look+fenced_apply+fenced_apply+fenced_apply", "Work", "Commit",
    ]  # fmt: skip
    assert [v.lets_write for v in script.begins] == [False, True, True]


def test_r15_segments_that_stand_all_need_no_work() -> None:
    script, go = run_apply(answered("REPLAYED", "REPLAYED"), None, segments=SEGMENTS[:2])
    assert len(go()) == 2
    assert script.names()[1:] == ["Commit"]


@pytest.mark.parametrize("names", [("ACCEPTED", "NOT_HELD"), ("PAYLOAD_CONFLICT", "ACCEPTED")])
def test_r18_one_refusal_undoes_what_came_with_it_and_its_own_evidence_stands(
    names: tuple[str, ...],
) -> None:
    refusal = next(name for name in names if name != "ACCEPTED")
    script, go = run_apply(answered(*names), answered(refusal), None, segments=SEGMENTS[:2])
    (alone,) = go()
    assert alone.verdict == refusal
    assert script.names() == [
        "begin+look+fenced_apply+fenced_apply", "Rollback", "begin+look+fenced_apply", "Commit",
    ]  # fmt: skip
    first, _, again, _ = script.steps
    assert isinstance(first, Batch)
    assert isinstance(again, Batch)
    # The loss of the lease, which the refusal may say, stops the one and not the other.
    assert (first.within, again.within) == (None, 30.0)
    assert again.calls[0].parameters[1] == names.index(refusal) + 1


def test_r18_a_refusal_that_was_none_when_asked_alone_commits_nothing() -> None:
    script, go = run_apply(
        answered("ACCEPTED", "STALE_POLICY"), answered("ACCEPTED"), segments=SEGMENTS[:2]
    )
    with pytest.raises(errors.PgfenceError, match="was refused, and then was not"):
        go()
    assert script.names()[-1] == "Rollback"


def test_r44_a_lost_acknowledgement_is_about_all_of_them() -> None:
    _, go = run_apply(answered("ACCEPTED", "ACCEPTED"), Left.OPEN, LOST, segments=SEGMENTS[:2])
    with pytest.raises(errors.MutationUnknownError, match="and the 1 behind it") as caught:
        go()
    assert (caught.value.segment_seq, caught.value.others) == (1, ("2",))


@pytest.mark.parametrize("name", ["REPLAYED", "STALE_OWNER", "NOT_HELD", "PAYLOAD_CONFLICT"])
def test_r18_anything_but_accepted_is_committed_without_work(name: str) -> None:
    script, go = run_apply(one(*answer("HELD", remaining_ms=1), *verdict(name)), None)
    assert go()[0].verdict == name
    assert script.names() == ["begin+look+fenced_apply", "Commit"]


def test_r18_a_refusal_stands_also_when_its_commit_is_lost() -> None:
    _, go = run_apply(one(*answer("EXPIRED"), *verdict("NOT_HELD", "EXPIRED")), LOST)
    assert go()[0].verdict == "NOT_HELD"


def test_r54_work_does_not_run_when_the_registry_says_otherwise() -> None:
    script, go = run_apply(one(*answer("EXPIRED"), *verdict("ACCEPTED")))
    with pytest.raises(errors.OwnershipUnknownError):
        go()
    assert script.names() == ["begin+look+fenced_apply", "Rollback"]
    assert script.ownership.state is State.EXPIRED


def test_r44_a_lost_acknowledgement_is_unknown_and_not_retried() -> None:
    script, go = run_apply(accepted(), Left.OPEN, LOST)
    with pytest.raises(errors.MutationUnknownError) as caught:
        go()
    assert script.names() == ["begin+look+fenced_apply", "Work", "Commit"]
    error = caught.value
    assert (error.resource, error.operation_root, error.segment_seq, error.payload_digest) == (
        SEGMENT.resource, SEGMENT.operation_root, 1, "ab",
    )  # fmt: skip


def test_r44_a_server_that_shuts_down_at_commit_leaves_it_unknown() -> None:
    _, go = run_apply(accepted(), Left.OPEN, failed("57P01", lost=True))
    with pytest.raises(errors.MutationUnknownError):
        go()


def test_r19_a_lease_that_ended_before_commit_is_known_not_written() -> None:
    _, go = run_apply(accepted(), Left.OPEN, failed("PF203"))
    with pytest.raises(errors.LeaseEndedError):
        go()


@pytest.mark.parametrize("sqlstate", ["25P03", "25P04"])
def test_r20_a_session_that_the_server_ended_for_idling_is_known_not_written(
    sqlstate: str,
) -> None:
    for replies in (
        (accepted(), Left.OPEN, failed(sqlstate, lost=True)),
        (accepted(), failed(sqlstate, lost=True)),
    ):
        _, go = run_apply(*replies)
        with pytest.raises(errors.LeaseEndedError, match="nothing was written"):
            go()


def test_r20_a_connection_lost_in_work_after_the_lease_had_ended_is_that() -> None:
    """A pooler may not pass on what the server said when it ended the session."""

    def lost_later(seconds: float) -> Callable[[], Any]:
        def lost() -> Any:
            script.now += seconds
            return failed("08P01", lost=True)

        return lost

    script, go = run_apply(accepted(), lost_later(9.0))
    with pytest.raises(errors.LeaseEndedError, match="nothing was written"):
        go()
    script, go = run_apply(accepted(), lost_later(8.9))
    with pytest.raises(RuntimeError, match="08P01"):
        go()


def test_an_error_at_commit_with_a_live_connection_is_known_not_written() -> None:
    _, go = run_apply(accepted(), Left.OPEN, failed("23505"))
    with pytest.raises(RuntimeError, match="23505"):
        go()


@pytest.mark.parametrize("error", [ValueError("page is empty"), KeyboardInterrupt()])
def test_what_work_raises_undoes_the_transaction_and_comes_out(error: BaseException) -> None:
    script, go = run_apply(accepted(), error)
    with pytest.raises(type(error)) as caught:
        go()
    assert caught.value is error
    assert script.names()[-1] == "Rollback"
    assert not script.doubted


@pytest.mark.parametrize("reply", [Left.OPEN, failed("57014"), failed("08006", lost=True)])
def test_r43_what_was_done_when_the_lease_was_lost_is_undone(reply: Any) -> None:
    def lose() -> Any:
        script.now = 3600.0
        return reply

    script, go = run_apply(accepted(), lose)
    with pytest.raises(errors.LeaseEndedError, match="lost while the work function ran"):
        go()
    assert script.names()[-1] == "Rollback"
    assert not script.doubted


def test_r42_work_does_not_begin_when_the_lease_was_lost_before_it() -> None:
    """While the call waited for the row lock, say: whoever stops work had none to stop."""

    def late() -> Any:
        script.now = 3600.0
        return one(*verdict("ACCEPTED"))

    proven = [SEGMENT._replace(proof=protocol.Proof("v4.public.p", 7200.0))]
    script, go = run_apply(late, segments=proven)
    with pytest.raises(errors.LeaseEndedError, match="lost before the work function ran"):
        go()
    assert script.names() == ["begin+fenced_apply", "Rollback"]
    assert not script.doubted


@pytest.mark.parametrize("failure", [LOST, failed("57014"), failed("40001")])
def test_r42_what_did_not_begin_is_not_tried_again_when_the_lease_is_lost(failure: Failed) -> None:
    def late() -> Any:
        script.now = 3600.0
        return failure

    script, go = run_apply(late)
    with pytest.raises(errors.LeaseEndedError, match="lost before the work function ran"):
        go()
    assert script.names() == ["begin+look+fenced_apply", "Rollback"]
    script = Script(late)
    script.change(lambda o, now: o.confirmed(now, now, 5.0))
    with pytest.raises(errors.LeaseEndedError, match="fence was to be raised"):
        script.run(protocol.advance("v4.public.x", script.is_lost, script.clock))
    assert script.names() == ["begin+advance", "Rollback"]


def test_r44_a_transaction_that_work_ended_is_in_doubt_also_when_the_lease_is_lost() -> None:
    def lose() -> Any:
        script.now = 3600.0
        return Left.ENDED

    script, go = run_apply(accepted(), lose)
    with pytest.raises(errors.MutationUnknownError):
        go()
    assert script.doubted


def test_r44_an_interrupt_at_commit_comes_out_and_leaves_the_segment_in_doubt() -> None:
    script, go = run_apply(accepted(), Left.OPEN, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        go()
    assert script.doubted


def test_r23_a_guard_s_refusal_in_work_is_typed() -> None:
    script, go = run_apply(accepted(), failed("PF201"))
    with pytest.raises(errors.NotAdmittedError):
        go()
    assert script.names()[-1] == "Rollback"


def test_work_that_swallowed_a_database_error_is_told() -> None:
    script, go = run_apply(accepted(), Left.ABORTED)
    with pytest.raises(errors.PgfenceError, match="the transaction was undone"):
        go()
    assert script.names()[-1] == "Rollback"


def test_work_that_ended_the_transaction_itself_leaves_it_unknown() -> None:
    _, go = run_apply(accepted(), Left.ENDED)
    with pytest.raises(errors.MutationUnknownError):
        go()


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_a_conflict_before_work_is_tried_again(sqlstate: str) -> None:
    script, go = run_apply(failed(sqlstate), failed(sqlstate), accepted(), Left.OPEN, None)
    assert go()[0].verdict == "ACCEPTED"
    assert script.names().count("Work") == 1


def test_a_connection_lost_before_work_is_replaced() -> None:
    script, go = run_apply(LOST, accepted(), Left.OPEN, None)
    assert go()[0].verdict == "ACCEPTED"
    begin = "begin+look+fenced_apply"
    assert script.names() == [begin, "Rollback", "Reopen", begin, "Work", "Commit"]


def test_a_conflict_that_stays_comes_out_unchanged() -> None:
    _, go = run_apply(*[failed("40001")] * 3)
    with pytest.raises(RuntimeError, match="40001"):
        go()


def test_a_conflict_in_work_or_at_commit_is_not_retried() -> None:
    for replies in (
        (accepted(), failed("40001")),
        (accepted(), Left.OPEN, failed("40001")),
    ):
        script, go = run_apply(*replies)
        with pytest.raises(RuntimeError, match="40001"):
            go()
        assert script.names().count("Work") == 1


def test_a_generator_that_is_dropped_while_work_runs_closes_quietly() -> None:
    steps = protocol.apply(
        [SEGMENT], Script().change, lambda: 0.0, lambda: False, lambda _: None, lambda: None
    )
    next(steps)
    assert isinstance(steps.send(accepted()), Work)
    steps.close()


def renewed(remaining_ms: int) -> list[list[tuple[Any, ...]]]:
    return one(*answer("HELD", remaining_ms=remaining_ms))


def keep(*replies: Any) -> Script:
    script = Script(*replies)
    script.change(lambda o, now: o.confirmed(now, now, 9.0))
    script.run(protocol.keep("lease-1", 9000, script.change, script.clock))
    return script


def test_r35_renewal_comes_at_a_third_of_the_lease_with_jitter() -> None:
    script = keep(renewed(9000), one(*answer("SUPERSEDED")))
    naps = [step.seconds for step in script.steps if isinstance(step, Sleep)]
    assert len(naps) == 2
    assert all(2.7 <= nap <= 3.0 for nap in naps)
    assert script.ownership.state is State.EXPIRED
    assert script.ownership.reason == "SUPERSEDED"


def test_in_doubt_about_the_lock_service_the_end_of_the_last_proof_makes_nobody_busy() -> None:
    script = Script()
    script.change(lambda o, now: o.confirmed(now, now, 3.0))
    proven = protocol.Renewal(lambda _: protocol.ask(Call(""), script.clock), until=1.0)
    steps = protocol.keep(
        "lease-1", 3000, script.change, script.clock, lambda: Standing.UNKNOWN, lambda: proven
    )
    for step in itertools.islice(steps, 100):
        assert isinstance(step, Sleep)
        assert step.seconds >= 0.05
        script.now += step.seconds
    assert script.ownership.state is State.EXPIRED


def test_r42_one_lost_reply_does_not_kill_a_healthy_owner() -> None:
    seen = []

    def lost() -> Failed:
        seen.append(script.ownership.state)
        return LOST

    def confirmed() -> list[list[tuple[Any, ...]]]:
        seen.append(script.ownership.state)
        return renewed(9000)

    def over() -> list[list[tuple[Any, ...]]]:
        seen.append(script.ownership.state)
        return one(*answer("RELEASED"))

    script = Script(lost, confirmed, over)
    script.change(lambda o, now: o.confirmed(now, now, 9.0))
    script.run(protocol.keep("lease-1", 9000, script.change, script.clock))
    assert seen == [State.RENEWING, State.OWNERSHIP_UNKNOWN, State.RENEWING]
    assert script.names() == ["Sleep", "renew", "Sleep", "Reopen", "renew", "Sleep", "renew"]


def test_r43_renewal_that_fails_longer_than_the_lease_ends_it_at_the_last_confirmed_deadline() -> (
    None
):
    script = Script(*[LOST] * 30)
    script.change(lambda o, now: o.confirmed(now, now, 9.0))
    with pytest.raises(AssertionError, match="not played to its end"):
        script.run(protocol.keep("lease-1", 9000, script.change, script.clock))
    assert script.ownership.state is State.EXPIRED
    assert 9.0 <= script.now <= 10.0


def test_an_error_without_a_lost_connection_is_asked_again_on_the_same_one() -> None:
    script = keep(failed("57014"), one(*answer("RELEASED")))
    assert script.names() == ["Sleep", "renew", "Sleep", "renew"]


def test_release_is_asked_again_once_on_a_new_connection() -> None:
    script = Script(LOST, one(*answer("RELEASED")))
    script.run(protocol.release("lease-1", 9000, script.clock))
    assert script.names() == ["release", "Reopen", "release"]


@pytest.mark.parametrize(("ttl_ms", "seconds"), [(100, 1.0), (9000, 9.0), (600_000, 30.0)])
def test_release_takes_no_longer_than_the_lease_would_last(ttl_ms: int, seconds: float) -> None:
    script = Script(one(*answer("RELEASED")))
    script.run(protocol.release("lease-1", ttl_ms, script.clock))
    (asked,) = script.steps
    assert isinstance(asked, Batch)
    assert asked.within == seconds


def test_r21_advance_is_repeated_when_its_answer_is_lost() -> None:
    row = one(*verdict("ADVANCED"))
    script = Script(row, LOST, row, None)
    advance = protocol.advance("v4.public.x", script.is_lost, script.clock)
    assert script.run(advance).verdict == "ADVANCED"
    assert script.names() == [
        "begin+advance", "Commit", "Rollback", "Reopen", "begin+advance", "Commit",
    ]  # fmt: skip


def test_r21_taking_over_waits_for_an_earlier_owner_s_transaction_until_the_timeout() -> None:
    """And for a second at least; what is lost then is not waited for again."""

    def silent() -> Failed:
        script.now = 8.0
        return LOST

    for reply, within in ((failed("57014"), 7.0), (silent, 7.0)):
        script = Script(reply)
        advance = protocol.advance("v4.public.x", script.is_lost, script.clock, None, 7.0)
        with pytest.raises(errors.AcquireTimeoutError, match="open transactions of earlier owners"):
            script.run(advance)
        assert [step.within for step in script.steps if isinstance(step, Batch)] == [within]
    script = Script(LOST, one(*verdict("ADVANCED")), None)
    advance = protocol.advance("v4.public.x", script.is_lost, script.clock, None, 0.5)
    assert script.run(advance).verdict == "ADVANCED"
    asked = [step.within for step in script.steps if isinstance(step, Batch | Reopen)]
    assert asked == [1.0, 1.0, 1.0]


def test_position_of_an_unknown_resource_is_the_beginning() -> None:
    position = Script([[]]).run(protocol.position("invoice/1"))
    assert (position.highest_fence, position.last_segment, position.operation_root) == (0, 0, None)


def test_what_only_reads_goes_on_over_a_new_connection_and_does_not_wait_for_ever() -> None:
    script = Script(LOST, [[]])
    script.run(protocol.position("invoice/1", 2.0))
    assert script.names() == ["position", "Reopen", "position"]
    assert [step.within for step in script.steps if isinstance(step, Batch | Reopen)] == [2.0] * 3
    script = Script([[]])
    script.run(protocol.operation_receipts("invoice/1", REQUEST.operation_root, 0))
    (asked,) = script.steps
    assert isinstance(asked, Batch)
    assert asked.within == 30.0


@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        (failed("3F000"), errors.SchemaVersionError, "pgfence migrate"),
        (failed("42883"), errors.SchemaVersionError, "pgfence migrate"),
        (failed("42501"), errors.NoWorkloadError, "grant pgfence_app"),
        (one("9999_future"), errors.SchemaVersionError, "9999_future.*was built for"),
        (failed("28000"), RuntimeError, "28000"),
    ],
)
def test_a_database_that_does_not_fit_says_what_to_do(
    reply: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Script(reply).run(protocol.introduce(lambda: 0.0))


def test_a_database_without_trust_bundle_says_what_to_do() -> None:
    with pytest.raises(errors.TrustRefusedError) as caught:
        Script(one(protocol.SCHEMA_VERSION), [[]]).run(protocol.introduce(lambda: 0.0))
    assert caught.value.next_step == "Run: pgfence trust init"


CHAIN = [[(1, rotation.FIRST.document, []), (2, rotation.SECOND_BUNDLE.document, rotation.signed(
    rotation.SECOND_BUNDLE.document, rotation.ALICE, rotation.BOB))]]  # fmt: skip


def test_r33_the_chain_is_asked_for_again_on_a_new_connection() -> None:
    script = Script(LOST, CHAIN)
    assert script.run(protocol.follow(rotation.FIRST)) == rotation.SECOND_BUNDLE
    assert script.names() == ["trust_chain", "Reopen", "trust_chain"]


@pytest.mark.parametrize("replies", [[failed("57014")], [LOST, failed("57P01", lost=True)]])
def test_r33_a_chain_that_does_not_come_is_an_error_and_no_split(replies: list[Failed]) -> None:
    with pytest.raises(RuntimeError):
        Script(*replies).run(protocol.follow(rotation.FIRST))


@pytest.mark.parametrize(
    ("chain", "says"),
    [
        ([[]], "does not have"),
        ([[(1, rotation.SECOND_BUNDLE.document, [])]], "another trust bundle 1"),
        ([CHAIN[0][1:]], "another trust bundle 1"),
        ([[*CHAIN[0], (3, rotation.SECOND_BUNDLE.document, [])]], "bundle 3 does not follow"),
        ([[CHAIN[0][0], (2, "{}", [])]], "bundle 2 does not follow"),
        ([[CHAIN[0][0], (2, rotation.SECOND_BUNDLE.document, [])]], "bundle 2 does not follow"),
    ],
)
def test_r33_a_chain_that_does_not_begin_or_go_on_as_it_must_is_a_split(
    chain: Any, says: str
) -> None:
    with pytest.raises(errors.BundleSplitError, match=says):
        Script(chain).run(protocol.follow(rotation.FIRST))


def test_r54_in_a_caller_s_transaction_a_refusal_is_returned_and_nothing_is_ended() -> None:
    script = Script(one(*answer("SUPERSEDED"), *verdict("STALE_OWNER")))
    assert script.run(protocol.apply_within(SEGMENT, script.clock)).verdict == "STALE_OWNER"
    call = "select * from pgfence_registry.look($4), pgfence.fenced_apply($1, $2, $3)"
    assert script.steps == [Batch((Call(call, ("v4.public.x", 1, "{}", "lease-1")),))]
