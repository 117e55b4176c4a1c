"""What a process remembers of what was acknowledged to it, and what it forgets (R47)."""

from __future__ import annotations

from datetime import UTC, datetime

from pgfence.client import acknowledged
from pgfence.client.acknowledged import Acknowledged
from pgfence.model.receipt import Receipt


def receipt(resource: str, segment: int, fence: int = 1) -> Receipt:
    return Receipt(
        resource,
        fence,
        segment,
        "root",
        "g",
        "p",
        f"{resource}-{fence}-{segment}",
        datetime.now(UTC),
    )


def numbers(memory: Acknowledged, resource: str) -> list[tuple[int, int]]:
    return [(r.fence_token, r.segment_seq) for r in memory.of(resource)]


def test_receipts_come_back_in_the_order_of_the_chain_and_once() -> None:
    memory = Acknowledged()
    memory.add([receipt("a", 1, fence=2), receipt("a", 2), receipt("b", 1), receipt("a", 1)])
    memory.add([receipt("a", 2)])
    assert numbers(memory, "a") == [(1, 1), (1, 2), (2, 1)]
    assert numbers(memory, "b") == [(1, 1)]
    assert numbers(memory, "c") == []


def test_what_is_forgotten_is_forgotten_and_the_rest_is_not() -> None:
    memory = Acknowledged()
    memory.add([receipt("a", 1), receipt("a", 2)])
    memory.forget([receipt("a", 2), receipt("a", 3), receipt("b", 1)])
    assert numbers(memory, "a") == [(1, 1)]


def test_of_each_resource_the_latest_are_kept() -> None:
    memory = Acknowledged()
    count = acknowledged._OF_EACH
    memory.add(receipt("a", segment) for segment in range(1, count + 11))
    assert numbers(memory, "a") == [(1, segment) for segment in range(11, count + 11)]


def test_the_resource_that_was_written_least_recently_is_forgotten_first() -> None:
    memory = Acknowledged()
    resources = [f"r{number}" for number in range(acknowledged._OF_ALL // acknowledged._OF_EACH)]
    for resource in resources:
        memory.add(receipt(resource, segment) for segment in range(acknowledged._OF_EACH))
    memory.add([receipt("r0", 10_000)])  # keeps as many as before
    memory.add([receipt("one more", 1)])
    assert numbers(memory, "r1") == []
    assert len(numbers(memory, "r0")) == acknowledged._OF_EACH
    assert numbers(memory, "one more") == [(1, 1)]
