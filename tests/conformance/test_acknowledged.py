"""A database behind what it has acknowledged (R47); failovers are in tests/faults/failover."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgfence import errors
from pgfence.model.receipt import Receipt
from tests.conformance.conftest import NOT_POOLED, RESOURCE, SETTLE, Connect, count
from tests.conformance.drivers import Asyncpg, Driver, Execute, Psycopg
from tests.support import PATIENCE, Database
from tests.workers import as_owner


@pytest.fixture(params=[Psycopg(), Asyncpg()], ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Driver:
    """With threads and with tasks."""
    chosen: Driver = request.param
    return chosen


#: A pooler changes nothing here.
pytestmark = NOT_POOLED


def settle(invoice: int) -> Any:
    def work(execute: Execute) -> None:
        execute(SETTLE, invoice, "settled")

    return work


def write(connect: Connect, segments: int) -> list[Receipt]:
    with connect().hold(RESOURCE, operation="settle") as lease:
        return [lease.apply({"page": page}, settle(page)) for page in range(1, segments + 1)]


def never_was(receipt: Receipt) -> Receipt:
    """What a receipt looks like that this database knows nothing of."""
    return replace(receipt, segment_seq=receipt.segment_seq + 100, digest="cd" * 32)


def test_r47_what_stands_is_not_lost(connect: Connect) -> None:
    kept = write(connect, 3)
    fence = connect()
    for _ in range(2):  # the second time it remembers them itself
        with fence.hold(RESOURCE, operation="settle", acknowledged=kept) as lease:
            kept.append(lease.apply({"page": len(kept)}, settle(1)))


def test_r47_an_owner_whose_acknowledged_segments_are_missing_does_not_get_the_resource(
    connect: Connect, served: Database
) -> None:
    kept = write(connect, 2)
    fence, lost = connect(), never_was(kept[-1])
    for _ in range(2):
        with (
            pytest.raises(errors.AcknowledgedSegmentsLostError) as caught,
            fence.hold(RESOURCE, operation="settle", ttl=600, acknowledged=[lost, *kept]),
        ):
            pytest.fail("went on behind what was acknowledged")
        assert caught.value.lost == (lost,)
        assert caught.value.position.last_segment == 2
        assert f"segment 102 of fence {lost.fence_token} ({lost.digest})" in str(caught.value)
    assert count(served, "select count(*) from pgfence.receipts") == 2
    # It does not keep others waiting.
    with connect("worker_b").hold(RESOURCE, operation="settle", timeout=PATIENCE):
        pass


def test_r47_once_the_loss_is_accepted_work_goes_on(connect: Connect) -> None:
    kept = write(connect, 2)
    fence = connect()
    with (
        pytest.raises(errors.AcknowledgedSegmentsLostError) as caught,
        fence.hold(RESOURCE, operation="settle", acknowledged=[*kept, never_was(kept[-1])]),
    ):
        pytest.fail("went on behind what was acknowledged")
    fence.accept_loss(caught.value)
    with fence.hold(RESOURCE, operation="settle", continues_root=kept[0].operation_root) as lease:
        assert lease.apply({"page": 3}, settle(3)).segment_seq == 1
        assert lease.position().total_segments == 3


def put_back(database: Database, to_segment: int) -> None:
    """Make the database what its files of an earlier moment would have it be."""
    as_owner(
        database,
        f"with gone as (delete from pgfence.receipts where segment_seq > {to_segment})"
        f" update pgfence.fences set last_segment = {to_segment}",
    )


def test_r47_a_worker_whose_database_was_put_back_under_it_does_not_go_on(
    connect: Connect, served: Database
) -> None:
    fence = connect()
    with fence.hold(RESOURCE, operation="settle") as lease:
        kept = [lease.apply({"page": page}, settle(page)) for page in (1, 2, 3)]
        with pytest.raises(errors.SegmentGapError):  # a worker's own mistake is no loss
            lease.apply({"page": 5}, settle(5), segment=5)
        put_back(served, to_segment=1)
        with pytest.raises(errors.AcknowledgedSegmentsLostError) as caught:
            lease.apply({"page": 4}, settle(4))
        assert caught.value.lost == tuple(kept[1:])
        assert caught.value.position.last_segment == 1
        assert isinstance(caught.value.__cause__, errors.SegmentGapError)
        fence.accept_loss(caught.value)
        assert lease.apply({"page": 2}, settle(2), segment=2).segment_seq == 2
    assert count(served, "select count(*) from pgfence.receipts") == 2


def test_r47_receipts_of_another_resource_are_no_argument(connect: Connect) -> None:
    kept = write(connect, 1)
    with (
        pytest.raises(errors.InvalidArgumentError, match="acknowledged"),
        connect().hold("invoice-batch/other", operation="settle", acknowledged=kept),
    ):
        pytest.fail("held")
