"""What a worker may believe about its lease (R41-R43). Pure: the clock is passed in.

Time is in seconds on the worker's own monotonic clock. That clock may stop the worker early and
never prolongs a lease: a deadline counts from the moment the question was SENT, while the registry
counts from when it answered, which is later.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Self


class State(StrEnum):
    """The states of R41."""

    REQUESTED = "REQUESTED"
    HELD = "HELD"
    RENEWING = "RENEWING"
    OWNERSHIP_UNKNOWN = "OWNERSHIP_UNKNOWN"
    EXPIRED = "EXPIRED"
    RELEASED = "RELEASED"


_S = State
#: Every move there is (R41). EXPIRED and RELEASED are final.
MOVES: dict[State, frozenset[State]] = {
    _S.REQUESTED: frozenset({_S.HELD, _S.OWNERSHIP_UNKNOWN, _S.EXPIRED, _S.RELEASED}),
    _S.HELD: frozenset({_S.RENEWING, _S.OWNERSHIP_UNKNOWN, _S.EXPIRED, _S.RELEASED}),
    _S.RENEWING: frozenset({_S.HELD, _S.OWNERSHIP_UNKNOWN, _S.EXPIRED, _S.RELEASED}),
    _S.OWNERSHIP_UNKNOWN: frozenset({_S.HELD, _S.EXPIRED, _S.RELEASED}),
    _S.EXPIRED: frozenset(),
    _S.RELEASED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Ownership:
    """One lease as its worker sees it. Each method returns what it becomes.

    An event that R41 knows no move for changes nothing: a confirmation that arrives after the
    worker has given the lease up does not bring it back.
    """

    state: State = State.REQUESTED
    #: From this moment on the lease is over for the worker.
    deadline: float = inf
    #: When the question was sent that the deadline rests on.
    asked_at: float = -inf
    #: Why it ended: EXPIRED, SUPERSEDED, UNKNOWN, ... in the registry's words.
    reason: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether nothing can change any more: EXPIRED or RELEASED."""
        return not MOVES[self.state]

    def at(self, now: float) -> Self:
        """As it is now: EXPIRED once the deadline is reached (R43)."""
        return self._to(State.EXPIRED, "EXPIRED") if now >= self.deadline else self

    def may_start(self, now: float) -> bool:
        """Whether a new effect may start (R42)."""
        return self.at(now).state in (State.HELD, State.RENEWING)

    def renewing(self, now: float) -> Self:
        """A renewal is being sent. In OWNERSHIP_UNKNOWN the doubt stays until it is answered."""
        return self.at(now)._to(State.RENEWING)

    def confirmed(self, now: float, asked_at: float, remaining: float) -> Self:
        """The registry said, to a question sent at `asked_at`, that `remaining` seconds are left.

        The registry's latest word counts, also when it is shorter than the one before (R38). An
        answer that was overtaken by a later one says nothing new.
        """
        current = self.at(now)
        if asked_at < self.asked_at or State.HELD not in MOVES[current.state] | {current.state}:
            return current
        return type(self)(State.HELD, asked_at + remaining, asked_at).at(now)

    def prolonged(self, now: float, asked_at: float, remaining: float) -> Self:
        """The registry said how long the lease lasts, and that is all: the state stays."""
        current = self.at(now)
        if current.is_final or asked_at < self.asked_at:
            return current
        return replace(current, deadline=asked_at + remaining, asked_at=asked_at).at(now)

    def doubted(self, now: float) -> Self:
        """A question got no answer (R42)."""
        return self.at(now)._to(State.OWNERSHIP_UNKNOWN)

    def ended(self, now: float, reason: str) -> Self:
        """The registry or the database said that the lease is over."""
        return self.at(now)._to(State.EXPIRED, reason)

    def released(self, now: float) -> Self:
        """The worker gave the lease back, or the registry said that it had been."""
        return self.at(now)._to(State.RELEASED, "RELEASED")

    def _to(self, state: State, reason: str | None = None) -> Self:
        if state not in MOVES[self.state]:
            return self
        return replace(self, state=state, reason=reason)
