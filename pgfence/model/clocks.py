"""How far the clocks of two servers are apart. Pure; nothing here waits or asks.

A server's clock was read somewhere between question and answer, both on our own monotonic clock. Of
two servers that gives bounds of their difference, and never more than that.
"""

from typing import NamedTuple, Self


class Reading(NamedTuple):
    """A server's clock, and when it was asked and had answered on ours. In seconds."""

    asked_at: float
    server: float
    answered_at: float


class Difference(NamedTuple):
    """By how many seconds one clock is ahead of another: at least `least`, at most `most`."""

    least: float
    most: float

    @classmethod
    def of(cls, one: Reading, other: Reading) -> Self:
        """By how much the clock of `one` is ahead of that of `other`."""
        return cls(
            (one.server - one.answered_at) - (other.server - other.asked_at),
            (one.server - one.asked_at) - (other.server - other.answered_at),
        )

    def exceeds(self, tolerance: float) -> bool:
        """Whether the clocks are certainly further apart than so many seconds."""
        return self.least > tolerance or self.most < -tolerance

    def __str__(self) -> str:
        middle, half = (self.least + self.most) / 2, (self.most - self.least) / 2
        return f"{middle * 1000:+.1f} ms (give or take {half * 1000:.1f})"
