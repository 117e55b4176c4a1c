"""What two readings say of the difference of two clocks, and what they do not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgfence.model.clocks import Difference, Reading

seconds = st.floats(0, 5, allow_nan=False)
offset = st.floats(-100, 100, allow_nan=False)


@given(offset, offset, seconds, seconds, seconds, seconds, seconds)
def test_the_true_difference_lies_within_the_bounds(
    one: float, other: float, there: float, back: float, between: float, out: float, home: float
) -> None:
    """Each server's clock is ours and an offset; questions and answers take their time."""
    first = Reading(0.0, there + one, there + back)
    begin = there + back + between
    second = Reading(begin, begin + out + other, begin + out + home)
    difference = Difference.of(first, second)
    assert difference.least - 1e-6 <= one - other <= difference.most + 1e-6
    assert not difference.exceeds(abs(one - other) + 1e-6)


def test_what_slow_answers_hide_does_not_count_as_too_much() -> None:
    fast = Difference.of(Reading(0, 1.0, 0.001), Reading(0.001, 0.002, 0.002))
    slow = Difference.of(Reading(0, 1.0, 2.0), Reading(2.0, 2.001, 2.002))
    assert fast.exceeds(0.5)
    assert not slow.exceeds(0.5)
    assert str(fast) == "+999.0 ms (give or take 1.0)"
