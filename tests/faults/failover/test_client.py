"""The Python client goes through a failover: it is told, acquires again, and goes on (R39, R47)."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import psycopg
import pytest

import pgfence
from pgfence import errors
from tests.faults.failover.clusters import DATABASE, Copy, Standby
from tests.registry import registry
from tests.support import PATIENCE, Database, Keys, TestServer

RESOURCE = "invoice-batch/2026-07-19"


def either(*servers: Copy, attributes: str = "read-write") -> Database:
    """The database on whichever of the servers takes writes, as libpq finds it.

    attributes: `any` to take the first that answers.
    """
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    password = servers[0].password
    return Database(
        TestServer(f"postgresql://postgres:{password}@{hosts}/?target_session_attrs={attributes}"),
        DATABASE,
    )


def test_r39_a_worker_goes_on_after_a_failover_without_an_operator(
    primary: Copy, standby: Standby, keys: Keys
) -> None:
    database = either(primary, standby)
    written: list[int] = []

    def settle(page: int) -> Any:
        def work(tx: Any) -> None:
            tx.execute(
                "insert into ledger select %s, highest_fence, last_segment"
                " from pgfence.position(%s)",
                [RESOURCE, RESOURCE],
            )
            written.append(page)

        return work

    with (
        registry(database, keys),
        pgfence.connect(database.dsn("worker_a")) as fence,
    ):
        with fence.hold(RESOURCE, operation="settle", ttl=120) as lease:
            lease.apply(1, settle(1))
            lease.apply(2, settle(2))
            standby.catch_up()
            standby.cut()
            lost = lease.apply(3, settle(3))  # acknowledged by the primary, and lost with it
            primary.stop("immediate")
            standby.promote()
            with pytest.raises(errors.AcknowledgedSegmentsLostError) as told:
                lease.apply(4, settle(4))
            assert isinstance(told.value.__cause__, errors.RebindRequiredError)
        assert written == [1, 2, 3]

        at = fence.position(RESOURCE)
        assert at.last_segment == 2
        with (
            pytest.raises(errors.AcknowledgedSegmentsLostError) as caught,
            fence.hold(
                RESOURCE, operation="settle", ttl=120, continues_root=at.operation_root or ""
            ),
        ):
            pytest.fail("went on behind what was acknowledged")
        assert caught.value.lost == told.value.lost == (lost,)
        assert caught.value.position == fence.position(RESOURCE)
        assert lost.digest in str(caught.value)
        fence.accept_loss(caught.value)
        with fence.hold(
            RESOURCE,
            operation="settle",
            ttl=120,
            continues_root=at.operation_root or "",
        ) as again:
            assert again.fence_token > lease.fence_token + 2**32
            for page in (3, 4):
                again.apply(page, settle(page))
        assert fence.position(RESOURCE).total_segments == 4
        with pytest.raises(errors.PgfenceError):
            lease.apply(5, settle(5))
    assert written == [1, 2, 3, 3, 4]
    receipts = standby.execute("select count(*) from pgfence.receipts")
    assert receipts == standby.execute("select count(*) from ledger") == 4
    database.close()


def test_r47_a_worker_that_keeps_its_receipts_elsewhere_is_told_what_a_failover_lost(
    primary: Copy, standby: Standby, keys: Keys
) -> None:
    """canonical/postgresql-operator#1153: committed rows lost on failover."""
    database = either(primary, standby)
    with (
        registry(database, keys),
        pgfence.connect(database.dsn("worker_a")) as fence,
        fence.hold(RESOURCE, operation="settle", ttl=120) as lease,
    ):
        kept = [lease.apply(page, lambda tx: None) for page in (1, 2)]
        standby.catch_up()
        standby.cut()
        lost = [lease.apply(page, lambda tx: None) for page in (3, 4)]
        primary.stop("immediate")
        standby.promote()
        # Another process of the worker's, which knows nothing but what was kept for it.
        with pgfence.connect(database.dsn("worker_a")) as another:
            with (
                pytest.raises(errors.AcknowledgedSegmentsLostError) as caught,
                another.hold(RESOURCE, operation="settle", acknowledged=kept + lost),
            ):
                pytest.fail("went on behind what was acknowledged")
            assert caught.value.lost == tuple(lost)
            # The control: who was not told of them is not told that they are lost.
        with (
            pgfence.connect(database.dsn("worker_a")) as unknowing,
            unknowing.hold(RESOURCE, operation="settle", timeout=PATIENCE),
        ):
            assert unknowing.position(RESOURCE).total_segments == 2
    database.close()


def test_r47_a_failover_that_lost_nothing_is_no_loss(
    primary: Copy, standby: Standby, keys: Keys
) -> None:
    database = either(primary, standby)
    with (
        registry(database, keys),
        pgfence.connect(database.dsn("worker_a")) as fence,
    ):
        with fence.hold(RESOURCE, operation="settle", ttl=120) as lease:
            kept = lease.apply(1, lambda tx: None)
            standby.catch_up()
            primary.stop("immediate")
            standby.promote()
            with pytest.raises(errors.RebindRequiredError):
                lease.apply(2, lambda tx: None)
        with fence.hold(RESOURCE, operation="settle", acknowledged=[kept]) as again:
            assert not again.apply(2, lambda tx: None).replayed
    database.close()


def test_r47_a_map_is_told_and_does_again_what_was_lost_when_that_is_accepted(
    primary: Copy, standby: Standby, keys: Keys
) -> None:
    database = either(primary, standby)
    pages = list(range(1, 9))
    computed: list[int] = []

    def compute(page: int) -> int:
        computed.append(page)
        return page

    def work(tx: Any, page: int) -> None:
        tx.execute("insert into ledger values (%s, 0, %s)", [RESOURCE, page])

    def until(last: int) -> Any:
        def compute_some(page: int) -> int:
            if page > last:
                raise ValueError(f"page {page} is not there yet")
            return compute(page)

        return compute_some

    with registry(database, keys), pgfence.connect(database.dsn("worker_a")) as fence:
        with fence.hold(RESOURCE, operation="settle", ttl=120) as lease:
            for last in (4, 6):
                with pytest.raises(ValueError, match="not there yet"):
                    lease.map(until(last), pages, work)
                if last == 4:
                    standby.catch_up()
                    standby.cut()
            primary.stop("immediate")
            standby.promote()
            with pytest.raises(errors.AcknowledgedSegmentsLostError) as caught:
                lease.map(compute, pages, work)
            assert [receipt.segment_seq for receipt in caught.value.lost] == [5, 6]
        fence.accept_loss(caught.value)
        root = caught.value.position.operation_root or ""
        with fence.hold(RESOURCE, operation="settle", ttl=120, continues_root=root) as again:
            receipts = again.map(compute, pages, work)
        assert [receipt.segment_seq for receipt in receipts] == [1, 2, 3, 4]
        assert fence.position(RESOURCE).total_segments == 8
    assert sorted(computed) == [1, 2, 3, 4, 5, 5, 6, 6, 7, 8]
    assert standby.execute("select count(distinct segment) from ledger") == 8
    assert standby.execute("select count(*) from ledger") == 8
    database.close()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_r39_who_gets_to_a_standby_in_a_failover_tries_again_and_is_told_so(
    primary: Copy, standby: Standby, keys: Keys, driver: Literal["psycopg", "asyncpg"]
) -> None:
    """A connection that led to a standby is not kept: it would lead there for good."""
    dsn = standby.database.dsn("worker_a")
    standby.catch_up()
    with pytest.raises(psycopg.OperationalError, match="this server is a standby"):
        pgfence.connect(dsn)

    async def hold(fence: pgfence.AsyncFence, timeout: float) -> int:
        async with fence.hold(RESOURCE, operation="settle", ttl=120, timeout=timeout) as lease:
            return lease.fence_token

    async def main() -> None:
        hosts = either(primary, standby, attributes="any").dsn("worker_a")
        async with pgfence.connect_async(hosts, driver=driver) as fence:
            assert await hold(fence, PATIENCE) == 1
            standby.catch_up()
            primary.stop("immediate")
            with pytest.raises(errors.AcquireTimeoutError, match="this server is a standby"):
                await hold(fence, 0.5)
            standby.promote()
            assert await hold(fence, PATIENCE) > 2**32

    database = either(primary, standby)
    with registry(database, keys):
        asyncio.run(main())
    database.close()
