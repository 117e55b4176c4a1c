"""lease.apply_many: several segments, one transaction, a receipt for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pgfence import errors
from tests.conformance.conftest import NOT_POOLED, RESOURCE, SETTLE, Connect, count, states
from tests.conformance.drivers import Execute, Lease
from tests.conformance.test_shadow import in_shadow  # noqa: F401 - a fixture
from tests.proxy import proxy_to
from tests.support import Database

TRANSACTIONS = "select count(distinct xmin::text) from pgfence.receipts"

#: What a pooler changes is tried with single segments.
pytestmark = NOT_POOLED


def page(number: int, payload: object = None) -> tuple[object, Any]:
    """A segment that settles one invoice."""

    def work(execute: Execute) -> None:
        execute(SETTLE, number, "settled")

    return number if payload is None else payload, work


def never(number: int) -> tuple[object, Any]:
    def work(execute: Execute) -> None:
        pytest.fail("work ran for a segment that is not new")

    return number, work


def settled(database: Database) -> list[int]:
    return [number for number, state in states(database).items() if state == "settled"]


def test_r15_segments_are_committed_together_with_a_receipt_each(
    connect: Connect, served: Database
) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        assert lease.apply_many([]) == []
        receipts = lease.apply_many([page(1), page(2), page(3)])
        assert [receipt.segment_seq for receipt in receipts] == [1, 2, 3]
        assert lease.apply(*page(4)).segment_seq == 4
    assert settled(served) == [1, 2, 3, 4]
    assert count(served, TRANSACTIONS) == 2
    whole = "select count(*) from pgfence.verify_receipts('invoice-batch/2026-07-19') where ok"
    assert count(served, whole) == 1


def test_r15_what_one_of_them_raises_undoes_all(connect: Connect, served: Database) -> None:
    def fails(execute: Execute) -> None:
        raise ValueError("the page is damaged")

    with connect().hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(ValueError, match="damaged"):
            lease.apply_many([page(1), page(2), (3, fails)])
        assert settled(served) == []
        assert count(served, "select count(*) from pgfence.receipts") == 0
        assert lease.next_segment == 1


def test_r12_those_that_stand_are_replayed_and_the_others_are_new(
    connect: Connect, served: Database
) -> None:
    with connect().hold(RESOURCE, operation="settle", request_id="batch-7") as lease:
        first = lease.apply_many([page(1), page(2)])
        with connect().hold(RESOURCE, operation="settle", request_id="batch-7") as again:
            receipts = again.apply_many([never(1), never(2), page(3)])
    assert [receipt.replayed for receipt in receipts] == [True, True, False]
    assert receipts[:2] == first
    assert settled(served) == [1, 2, 3]


def test_r18_one_conflict_undoes_all_and_its_evidence_stands(
    connect: Connect, served: Database
) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        lease.apply_many([page(1), page(2)])
        with pytest.raises(errors.PayloadConflictError):
            lease.apply_many([page(2, "another"), page(3)], segment=2)
        assert settled(served) == [1, 2]
        assert count(served, "select count(*) from pgfence.quarantined_segments") == 1
        assert lease.apply(*page(3)).segment_seq == 3


@pytest.mark.parametrize("lose", ["reply", "request"])
def test_r44_a_lost_acknowledgement_is_about_all_of_them(
    connect: Connect, served: Database, lose: str
) -> None:
    with proxy_to(served.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=30) as lease:
            lease.apply(*page(1))
            proxy.lose_reply_to_commit() if lose == "reply" else proxy.lose_commit()
            with pytest.raises(errors.MutationUnknownError) as caught:
                lease.apply_many([page(2), page(3), page(4)])
            assert (caught.value.segment_seq, len(caught.value.others)) == (2, 2)
            for other in ([page(5)], [page(2), page(5)], [page(3)]):
                with pytest.raises(errors.MutationUnknownError):
                    lease.apply_many(other)
            # The first speaks for the rest.
            again = lease.apply(*page(2))
            rest = lease.apply_many([page(3), page(4), page(5)])
    assert again.replayed == (lose == "reply")
    assert [receipt.replayed for receipt in rest] == [again.replayed, again.replayed, False]
    assert [receipt.segment_seq for receipt in rest] == [3, 4, 5]
    assert settled(served) == [1, 2, 3, 4, 5]
    assert count(served, "select count(*) from pgfence.receipts") == 5


def test_r46_a_map_commits_so_many_together(connect: Connect, served: Database) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:

        def write(execute: Execute, number: int) -> None:
            execute(SETTLE, number, "settled")

        def compute(number: int) -> int:
            return number

        receipts = lease.map(compute, range(1, 9), write, together=3)
        assert [receipt.segment_seq for receipt in receipts] == list(range(1, 9))
        assert count(served, TRANSACTIONS) == 3
        lease.map(compute, range(1, 11), write, together=3)
    assert settled(served) == list(range(1, 11))
    assert count(served, TRANSACTIONS) == 4


def test_r46_what_was_computed_before_a_failure_is_applied_all_the_same(
    connect: Connect, served: Database
) -> None:
    def compute(number: int) -> int:
        if number == 6:
            raise ValueError("page 6 is damaged")
        return number

    with connect().hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(ValueError, match="page 6"):
            lease.map(
                compute, range(1, 11), lambda execute, n: execute(SETTLE, n, "settled"), together=4
            )
        assert lease.next_segment == 6
    assert settled(served) == [1, 2, 3, 4, 5]
    assert count(served, TRANSACTIONS) == 2


def test_r28_in_shadow_those_that_would_be_refused_run_with_the_others(
    connect: Connect,
    in_shadow: Database,  # noqa: F811
    end: Callable[[Lease], str],
) -> None:
    with connect().hold(RESOURCE, operation="settle", ttl=6) as lease:
        lease.apply_many([page(1), page(2)])
        receipts = lease.apply_many([never(2), page(3), page(4)], segment=2)
        assert [(r.replayed, r.would_refuse) for r in receipts] == [
            (True, None), (False, None), (False, None),
        ]  # fmt: skip
        refusal = end(lease)
        receipts = lease.apply_many([page(5), page(6)])
        assert [receipt.would_refuse for receipt in receipts] == [refusal, refusal]
    assert settled(in_shadow) == [1, 2, 3, 4, 5, 6]
