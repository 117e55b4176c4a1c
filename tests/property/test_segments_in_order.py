"""Whatever the order in which computations end: segments are applied in that of the items (R46)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgfence import errors
from pgfence.client.segments import (
    Apply,
    Compute,
    Conflict,
    Hold,
    Ready,
    Result,
    Segment,
    Standing,
    in_order,
)
from pgfence.model.payload import payload_digest, payload_text
from pgfence.model.receipt import Receipt
from pgfence.model.verdict import Verdict


class Broken(Exception):  # noqa: N818 - what a test raises
    """An item's own failure."""


class World:
    """Carries the steps out: a list of computations, of which any may end at any time."""

    def __init__(self, data: st.DataObject, standing: list[str | None], broken: set[int]) -> None:
        self.data = data
        #: Payload digests of what stands in the database; None: pruned.
        self.standing = standing
        self.broken = broken
        self.running: set[int] = set()
        self.ended: set[int] = set()
        self.computed: list[int] = []
        self.taken_and_not_applied = 0
        self.most_taken = 0
        self.applied: list[Segment] = []
        self.transactions: list[int] = []
        self.told = 0
        self.held = False
        self.attempts = 0

    def run(self, steps: Any) -> list[Receipt]:
        try:
            step = next(steps)
            while True:
                try:
                    reply = self.perform(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as stop:
            receipts: list[Receipt] = stop.value
            return receipts

    def perform(self, step: Any) -> Any:
        for task in sorted(self.running - self.ended):
            if self.data.draw(st.booleans()):
                self.ended.add(task)
        match step:
            case Standing(after):
                page = self.data.draw(st.integers(1, 3))
                numbers = range(after + 1, len(self.standing) + 1)
                found = [(n, self.standing[n - 1]) for n in numbers if self.standing[n - 1]]
                return found[:page]
            case Conflict(segment):
                raise Broken(f"conflict at {segment.number}")
            case Compute(item):
                self.running.add(item)
                self.computed.append(item)
                self.taken_and_not_applied += 1
                self.most_taken = max(self.most_taken, self.taken_and_not_applied)
                return item
            case Ready(task):
                return task in self.ended
            case Result(task):
                self.ended.add(task)
                if task in self.broken:
                    raise Broken(f"item {task}")
                return task * 10
            case Hold():
                self.held = True
                return None
            case Apply(segments):
                assert self.held, "it was not asked whether ownership is in doubt"
                self.held = False
                return self.apply(list(segments))
        raise AssertionError(step)

    def apply(self, segments: list[Segment]) -> list[Receipt]:
        """Commit, unless it gets lost; the answer may get lost as well, and ownership in doubt."""
        self.attempts += 1
        fate = self.data.draw(st.sampled_from(FATES)) if self.attempts < 5 else "answered"
        if fate == "doubt":
            raise errors.OwnershipUnknownError("in doubt")
        if segments[0] not in self.applied and fate != "commit lost":
            self.applied += segments
            self.taken_and_not_applied -= len(segments)
            self.transactions.append(len(segments))
        if fate != "answered":
            raise errors.MutationUnknownError("r", "root", segments[0].number, "p")
        self.attempts = 0
        return [receipt(segment.number) for segment in segments]


FATES = ["answered"] * 4 + ["doubt", "commit lost", "answer lost"]


def receipt(number: int) -> Receipt:
    return Receipt("r", 1, number, "root", "g", "p", f"{number}", datetime.now(UTC))


def payload(item: int) -> object:
    return {"item": item}


def digest(item: int) -> str:
    return payload_digest(payload_text(payload(item)))


@pytest.mark.rule("R46")
@given(st.data())
def test_r46_the_outcome_is_that_of_computing_and_applying_one_after_the_other(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(0, 12), "items")
    first = data.draw(st.integers(1, 3), "first")
    ahead = data.draw(st.integers(1, 6), "ahead")
    together = data.draw(st.integers(1, ahead), "together")
    items = list(range(count))
    broken = data.draw(st.sets(st.sampled_from(items)) if items else st.just(set()), "broken")
    ends_at = data.draw(st.none() | st.integers(0, count), "the items break off at")
    #: What stands before `first` is none of ours; of ours some are pruned, and some conflict.
    stands = data.draw(st.integers(0, count), "standing")
    kinds = st.sampled_from(["same", "same", "same", "pruned", "another"])
    of_ours = [data.draw(kinds, f"segment of item {item}") for item in range(stands)]
    standing: list[str | None] = ["before"] * (first - 1)
    for item, kind in enumerate(of_ours):
        standing.append({"same": digest(item), "pruned": None, "another": "cd" * 32}[kind])

    def source() -> Iterator[int]:
        for item in items:
            if item == ends_at:
                raise Broken("the items")
            yield item

    world = World(data, standing, broken)
    steps = in_order(
        source(),
        payload,
        first=first,
        standing=len(standing),
        ahead=ahead,
        together=together,
        told=lambda n: setattr(world, "told", world.told + n),
    )
    error: str | None = None
    receipts: list[Receipt] = []
    try:
        receipts = world.run(steps)
    except Broken as raised:
        error = str(raised)

    # The model: one item after the other.
    expected, wrong, told = [], None, 0
    for item in items:
        if item == ends_at:
            wrong = "the items"
        elif item < stands and of_ours[item] == "another":
            wrong = f"conflict at {first + item}"
        elif item >= stands and item in broken:
            wrong = f"item {item}"
        if wrong:
            break
        told += 1
        if item >= stands:
            expected.append(item)
    assert error == wrong
    assert [segment.computed for segment in world.applied] == [item * 10 for item in expected]
    assert [segment.number for segment in world.applied] == [first + item for item in expected]
    assert world.told == told
    assert world.most_taken <= ahead
    assert world.computed == items[stands : stands + len(world.computed)], "in order, and only new"
    assert all(size <= together for size in world.transactions)
    if error is None:
        assert [r.segment_seq for r in receipts] == [first + item for item in expected]


@pytest.mark.rule("R46")
def test_r46_a_computed_segment_does_not_wait_for_the_next_item() -> None:
    applied: list[int] = []

    def slow() -> Iterator[int]:
        yield 1
        yield 2
        assert applied == [1], "the second item came while the first was computed and not applied"
        yield 3

    steps = in_order(slow(), payload, first=1, standing=0, ahead=4, together=1, told=lambda _: None)
    reply: Any = None
    with pytest.raises(StopIteration):
        while True:
            match steps.send(reply):
                case Hold():
                    reply = None
                case Apply(segments):
                    applied += [segment.number for segment in segments]
                    reply = [receipt(segment.number) for segment in segments]
                case Ready(task):
                    reply = task == 1 and 1 not in applied
                case Compute(item) | Result(item):
                    reply = item
    assert applied == [1, 2, 3]


@pytest.mark.rule("R44")
@pytest.mark.parametrize(
    ("failures", "raised"),
    [
        (["unknown"] * 5, "unknown"),
        (["unknown", "refused"], "unknown"),
        (["unknown", "doubt", "refused"], "unknown"),
        (["doubt", "refused"], "refused"),
        (["refused"], "refused"),
        (["doubt"] * 5, "doubt"),
    ],
)
def test_r44_what_is_unknown_is_not_reported_as_anything_else(
    failures: list[str], raised: str
) -> None:
    kinds: dict[str, Exception] = {
        "unknown": errors.MutationUnknownError("r", "root", 1, "p"),
        "doubt": errors.OwnershipUnknownError("in doubt"),
        "refused": errors.NotHeldError(Verdict("NOT_HELD")),
    }
    steps = in_order([1], payload, first=1, standing=0, ahead=1, together=1, told=lambda _: None)
    left = list(failures)
    step: Any = next(steps)
    with pytest.raises(errors.PgfenceError) as caught:
        while True:
            match step:
                case Apply():
                    step = steps.throw(kinds[left.pop(0)])
                case Compute(item) | Result(item):
                    step = steps.send(item)
                case _:
                    step = steps.send(None)
    assert caught.value is kinds[raised]
    assert not left
