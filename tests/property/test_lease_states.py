"""R41-R43: what a worker may believe, against a table written out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgfence.model.lease import Ownership, State

# Event, state before -> state after, while the deadline has not come; what is not here stays.
_TABLE = {
    ("confirmed", "REQUESTED"): "HELD",
    ("confirmed", "RENEWING"): "HELD",
    ("confirmed", "OWNERSHIP_UNKNOWN"): "HELD",
    # "prolonged" moves nothing: the registry's word alone, where a proof is wanted as well (R13)
    ("renewing", "HELD"): "RENEWING",
    ("doubted", "REQUESTED"): "OWNERSHIP_UNKNOWN",
    ("doubted", "HELD"): "OWNERSHIP_UNKNOWN",
    ("doubted", "RENEWING"): "OWNERSHIP_UNKNOWN",
    ("ended", "REQUESTED"): "EXPIRED",
    ("ended", "HELD"): "EXPIRED",
    ("ended", "RENEWING"): "EXPIRED",
    ("ended", "OWNERSHIP_UNKNOWN"): "EXPIRED",
    ("released", "REQUESTED"): "RELEASED",
    ("released", "HELD"): "RELEASED",
    ("released", "RENEWING"): "RELEASED",
    ("released", "OWNERSHIP_UNKNOWN"): "RELEASED",
}


#: What says how long the lease lasts.
_DEADLINES = ("confirmed", "prolonged")


@dataclass
class _Reference:
    """The same rules, said in another way: a deadline is that of the latest question."""

    state: str = "REQUESTED"
    asked_at: float = -inf
    deadline: float = inf

    def event(self, name: str, now: float, asked_at: float, remaining: float) -> None:
        self.tick(now)
        if name in _DEADLINES and self.state not in ("EXPIRED", "RELEASED"):
            if asked_at < self.asked_at:
                return
            self.asked_at, self.deadline = asked_at, asked_at + remaining
        self.state = _TABLE.get((name, self.state), self.state)
        self.tick(now)

    def tick(self, now: float) -> None:
        if self.state != "RELEASED" and now >= self.deadline:
            self.state = "EXPIRED"


_steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["confirmed", "prolonged", "renewing", "doubted", "ended", "released", "at"]
        ),
        st.integers(0, 5),  # time that passes before
        st.integers(0, 8),  # how long ago the question was sent
        st.integers(0, 20),  # what is left of the lease
    ),
    max_size=40,
)


def _move(ownership: Ownership, name: str, now: float, asked_at: float, left: float) -> Ownership:
    match name:
        case "confirmed":
            return ownership.confirmed(now, asked_at, left)
        case "prolonged":
            return ownership.prolonged(now, asked_at, left)
        case "renewing":
            return ownership.renewing(now)
        case "doubted":
            return ownership.doubted(now)
        case "ended":
            return ownership.ended(now, "SUPERSEDED")
        case "released":
            return ownership.released(now)
    return ownership.at(now)


@settings(max_examples=500)
@given(_steps)
def test_r41_every_move_is_the_table_s(steps: list[tuple[str, int, int, int]]) -> None:
    now = 0.0
    ownership, reference = Ownership(), _Reference()
    for name, passed, ago, left in steps:
        now += passed
        ownership = _move(ownership, name, now, now - ago, left)
        reference.event(name, now, now - ago, left)
        assert ownership.at(now).state == reference.state, (name, now)


@settings(max_examples=500)
@given(_steps)
def test_r42_r43_an_effect_starts_only_within_what_the_registry_last_confirmed(
    steps: list[tuple[str, int, int, int]],
) -> None:
    now = 0.0
    ownership = Ownership()
    confirmations: list[tuple[float, float]] = []
    for name, passed, ago, left in steps:
        now += passed
        ownership = _move(ownership, name, now, now - ago, left)
        if name in _DEADLINES:
            confirmations.append((now - ago, left))
        if ownership.may_start(now):
            latest = max(asked_at for asked_at, _ in confirmations)
            assert any(a == latest and now < a + left for a, left in confirmations)
            assert ownership.state not in (State.OWNERSHIP_UNKNOWN, State.EXPIRED, State.RELEASED)


@given(_steps)
def test_r41_expired_and_released_are_final(steps: list[tuple[str, int, int, int]]) -> None:
    for final in (Ownership(State.EXPIRED), Ownership(State.RELEASED)):
        ownership = final
        for name, _, ago, left in steps:
            ownership = _move(ownership, name, 100.0, 100.0 - ago, left)
        assert ownership == final


def test_r43_the_deadline_counts_from_when_the_question_was_sent() -> None:
    ownership = Ownership().confirmed(now=105.0, asked_at=100.0, remaining=10.0)
    assert ownership.deadline == 110.0
    assert ownership.may_start(109.9)
    assert ownership.at(110.0).state is State.EXPIRED


def test_r38_a_later_word_of_the_registry_may_shorten_the_lease() -> None:
    ownership = Ownership().confirmed(0.0, 0.0, 100.0).confirmed(1.0, 1.0, 2.0)
    assert ownership.deadline == 3.0


def test_r43_an_overtaken_answer_changes_nothing() -> None:
    ownership = Ownership().confirmed(5.0, 5.0, 10.0).doubted(6.0)
    assert ownership.confirmed(7.0, 4.0, 100.0) == ownership


@pytest.mark.parametrize("state", list(State))
def test_r42_only_held_and_renewing_start_effects(state: State) -> None:
    assert Ownership(state).may_start(0.0) is (state in (State.HELD, State.RENEWING))
