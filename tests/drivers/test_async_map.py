"""AsyncLease: what is cancelled when map ends early, and when the lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

import pgfence
from pgfence import errors
from tests.registry import registry
from tests.rollout import shadow
from tests.support import PATIENCE, Database, Keys
from tests.workers import end_lease

RESOURCE = "invoice-batch/2026-07-19"
PAGES = list(range(1, 11))


@pytest.fixture(autouse=True)
def signing(database: Database, keys: Keys) -> Iterator[None]:
    with registry(database, keys):
        yield


@pytest.fixture(params=["psycopg", "asyncpg"])
def driver(request: pytest.FixtureRequest) -> Literal["psycopg", "asyncpg"]:
    chosen: Literal["psycopg", "asyncpg"] = request.param
    return chosen


@asynccontextmanager
async def hold(
    database: Database, driver: Literal["psycopg", "asyncpg"]
) -> AsyncIterator[pgfence.AsyncLease]:
    async with (
        pgfence.connect_async(database.dsn("worker_a"), driver=driver) as fence,
        fence.hold(RESOURCE, operation="settle", ttl=9) as lease,
    ):
        yield lease


def run(doing: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(PATIENCE):
            await doing()

    asyncio.run(within())


def lose(database: Database, lease: pgfence.AsyncLease) -> None:
    """Let the lease end, and its worker ask at once rather than at a third of it."""
    end_lease(database, lease.grant.lease)
    lease._registry_session.wake()


async def nothing(tx: Any, computed: Any) -> None:
    pass


class Computing:
    """Computations of which only the first ends."""

    def __init__(self, fails: bool = False) -> None:
        self.begun: list[int] = []
        self.cancelled: list[int] = []
        self.several = asyncio.Event()
        self._fails = fails

    async def __call__(self, page: int) -> int:
        self.begun.append(page)
        if len(self.begun) == 3:
            self.several.set()
        try:
            if page > 1:
                await asyncio.Event().wait()
            await self.several.wait()
        except asyncio.CancelledError:
            self.cancelled.append(page)
            raise
        if self._fails:
            raise ValueError("page 1 is damaged")
        return page


def test_what_still_computes_is_cancelled_when_another_one_fails(
    database: Database, driver: Literal["psycopg", "asyncpg"]
) -> None:
    async def doing() -> None:
        compute = Computing(fails=True)
        async with hold(database, driver) as lease:
            with pytest.raises(ValueError, match="damaged"):
                await lease.map(compute, PAGES, nothing, workers=3)
            assert sorted(compute.cancelled) == compute.begun[1:]
            assert len(compute.begun) < 6  # the first one's place was free for a moment
            assert (await lease.position()).last_segment == 0

    run(doing)


def test_a_map_that_is_cancelled_cancels_what_it_computes(
    database: Database, driver: Literal["psycopg", "asyncpg"]
) -> None:
    async def doing() -> None:
        compute = Computing()
        async with hold(database, driver) as lease:
            mapping = asyncio.create_task(lease.map(compute, PAGES, nothing, workers=3))
            await compute.several.wait()
            mapping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await mapping
            assert set(compute.cancelled) >= {2, 3}
            assert (await lease.position()).last_segment <= 1

    run(doing)


def test_r43_a_block_is_cancelled_when_the_lease_is_lost(
    database: Database, driver: Literal["psycopg", "asyncpg"]
) -> None:
    async def doing() -> None:
        async with hold(database, driver) as lease:
            with pytest.raises(errors.NotHeldError):
                async with lease.while_held():
                    lose(database, lease)
                    await asyncio.Event().wait()
            assert lease.lost.is_set()
            with pytest.raises(errors.NotHeldError):
                async with lease.while_held():
                    pytest.fail("begun")

    run(doing)


def test_a_block_that_ends_while_the_lease_is_held_is_left_alone(
    database: Database, driver: Literal["psycopg", "asyncpg"]
) -> None:
    async def doing() -> None:
        async with hold(database, driver) as lease:
            async with lease.while_held():
                await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                async with lease.while_held(), asyncio.timeout(0):
                    await asyncio.Event().wait()
            with pytest.raises(ValueError, match="of the block"):
                async with lease.while_held():
                    raise ValueError("of the block")
            lose(database, lease)
            assert await lease.lost.wait()
            await asyncio.sleep(0)  # nobody is cancelled who has left the block

    run(doing)


def test_r28_in_shadow_a_block_is_left_alone(
    database: Database, driver: Literal["psycopg", "asyncpg"]
) -> None:
    shadow(database, "invoice-batch/")

    async def doing() -> None:
        async with hold(database, driver) as lease, lease.while_held():
            lose(database, lease)
            assert await lease.lost.wait()
            await asyncio.sleep(0)

    run(doing)
