"""The way in for asyncio: `connect_async`, and what `Fence` does, awaited."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import psycopg

from pgfence import coordinators, errors
from pgfence.client import protocol
from pgfence.client.async_lease import AsyncLease, refuse_other_loop
from pgfence.client.base import BaseFence, check_taking_up, reach
from pgfence.client.database import Database, arranged
from pgfence.clock import moment, monotonic
from pgfence.coordinators.protocol import Claimant
from pgfence.drivers import psycopg_async
from pgfence.drivers.async_session import AsyncSession
from pgfence.errors import MutationUnknownError
from pgfence.model.outcome import Coordinates, Outcome
from pgfence.model.receipt import Position, Receipt
from pgfence.model.verdict import Verdict

if TYPE_CHECKING:
    from pgfence.drivers.sqlalchemy_async import Source

_log = logging.getLogger("pgfence.client")


def connect_async(
    database: "str | Source",
    *,
    driver: Literal["psycopg", "asyncpg"] = "psycopg",
    registry: str | None = None,
    coordinator: str = "postgres",
    bundle_digest: str | None = None,
    prepare_threshold: int | None = 5,
) -> "Connecting":
    """Reach a guarded database from a task: `await` it, or use it with `async with`.

    database: a DSN, and work functions get a connection of the driver; or a SQLAlchemy AsyncEngine
    of postgresql+psycopg or postgresql+asyncpg, and they get an AsyncConnection; or an
    async_sessionmaker, and they get an AsyncSession. driver: for a DSN; asyncpg must be installed
    (`pip install 'pgfence[asyncpg]'`). prepare_threshold: for a DSN, as in psycopg; asyncpg
    prepares a statement at its first use, or never if it is None. All else is as in `connect`.

    Raises what `connect` raises, and `ImportError` where the driver is missing.
    """
    reached = [database] if registry is None else [database, registry]
    return Connecting(
        lambda: _connect(
            [_sessions(each, driver, prepare_threshold) for each in reached],
            coordinators.claimant(coordinator),
            bundle_digest,
        )
    )


class Connecting:
    """What `connect_async` returns."""

    def __init__(self, connect: Callable[[], Awaitable["AsyncFence"]]) -> None:
        self._connect = connect

    def __await__(self) -> Generator[Any, Any, "AsyncFence"]:
        return self._connect().__await__()

    async def __aenter__(self) -> "AsyncFence":
        self._fence = await self._connect()
        return self._fence

    async def __aexit__(self, *_: object) -> None:
        await self._fence.close()


def _sessions(
    database: "str | Source", driver: str, prepare_threshold: int | None
) -> Callable[[], AsyncSession]:
    """What makes the sessions of a driver."""
    if not isinstance(database, str):
        # Importing it takes longer than all the rest; whoever has an Engine has done so.
        from pgfence.drivers import sqlalchemy_async

        return sqlalchemy_async.sessions(database)
    dsn = database
    if driver == "psycopg":
        return lambda: psycopg_async.Session(dsn, prepare_threshold=prepare_threshold)
    if driver != "asyncpg":
        raise errors.InvalidArgumentError(f"driver must be psycopg or asyncpg, not {driver!r}")
    try:
        from pgfence.drivers import asyncpg
    except ModuleNotFoundError as missing:
        if missing.name != "asyncpg":
            raise
        raise ImportError(
            "the driver asyncpg is not installed: pip install 'pgfence[asyncpg]'"
        ) from missing
    return lambda: asyncpg.Session(dsn, prepare_threshold=prepare_threshold)


async def _connect(
    makers: list[Callable[[], AsyncSession]], claimant: Claimant, bundle_digest: str | None
) -> "AsyncFence":
    sessions = [make() for make in makers]
    try:
        found, tolerance = await sessions[0].run(reach(bundle_digest, *sessions[1:]))
    except BaseException:
        for session in sessions:
            session.close()
        raise
    return AsyncFence(arranged(makers, sessions, found, claimant, tolerance))


class AsyncFence(BaseFence[AsyncSession]):
    """A guarded database as one process sees it; made by `connect_async`.

    Tasks of one event loop may share it.
    """

    def __init__(self, database: Database[AsyncSession]) -> None:
        super().__init__(database)
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the idle connections. Leases that are held live on with their own."""
        self._close()

    @asynccontextmanager
    async def hold(
        self,
        resource: str,
        *,
        operation: str,
        ttl: float = 10.0,
        arguments: object = "",
        request_id: str | None = None,
        continues_root: str = "",
        take_up: bool = False,
        timeout: float | None = None,
        acknowledged: Iterable[Receipt] = (),
    ) -> AsyncIterator[AsyncLease]:
        """Acquire a resource, renew in a task, and release it when the block is left.

        As `Fence.hold`. A task that is cancelled leaves the queue, or gives back what it got.
        """
        if take_up:
            check_taking_up(request_id, continues_root)
            hold = partial(
                self.hold,
                resource,
                operation=operation,
                ttl=ttl,
                arguments=arguments,
                acknowledged=tuple(acknowledged),
            )
            async with self._take_up(resource, timeout, hold) as taken_up:
                yield taken_up
            return
        wanted = self._request(
            resource,
            operation,
            ttl,
            arguments,
            request_id,
            continues_root,
            timeout,
            acknowledged,
        )
        until = moment(timeout)
        lease = await AsyncLease.acquire(self._database, wanted, timeout)
        try:
            await lease.take_over(until)
            yield lease
        finally:
            try:
                await lease.release()
            except Exception as error:
                _log.warning("%r was not released, it ends by itself: %s", lease, error)

    @asynccontextmanager
    async def _take_up(
        self,
        resource: str,
        timeout: float | None,
        hold: Callable[..., AbstractAsyncContextManager[AsyncLease]],
    ) -> AsyncIterator[AsyncLease]:
        """Hold it with the root of the last segment; ask again if there are later ones by then."""
        until = moment(timeout)
        self._check_usable()
        with self._database.lent() as session:
            earlier = await session.run(self._written_root(resource, until))
        while True:
            left = None if timeout is None else max(0.0, until - monotonic())
            async with hold(continues_root=earlier, timeout=left) as lease:
                latest = await lease._in_turn(self._written_root(resource, until))
                if latest == earlier:
                    yield lease
                    return
            earlier = latest

    async def apply(
        self, conn: Any, grant: str | AsyncLease, segment: int, payload: object
    ) -> Verdict:
        """Call `fenced_apply` in the transaction that the caller has open on `conn`.

        As `Fence.apply`. conn: a psycopg `AsyncConnection`, an asyncpg `Connection`, or an
        AsyncConnection, AsyncSession or async_scoped_session of SQLAlchemy, whatever the fence
        itself was connected with.
        """
        token = self._token(grant, segment)
        verifier = self._database.verifier
        if verifier.lacks_key(token):
            with self._database.lent() as session:
                await session.run(verifier.follow())
        steps = self._apply_within(grant, segment, payload)
        if isinstance(conn, psycopg.AsyncConnection):
            return await psycopg_async.run_within(conn, steps)
        if hasattr(conn, "is_in_transaction"):  # asyncpg's, or its pool's proxy of one
            from pgfence.drivers import asyncpg

            return await asyncpg.run_within(conn, steps)
        from pgfence.drivers import sqlalchemy_async

        return await sqlalchemy_async.run_within(conn, steps)

    async def reconcile(
        self, unknown: MutationUnknownError | Coordinates, *, grant: str | AsyncLease | None = None
    ) -> Outcome:
        """As `Fence.reconcile`."""
        self._check_usable()
        with self._database.lent() as session:
            return await session.run(self._reconcile(unknown, grant))

    async def position(self, resource: str) -> Position:
        """Where the receipts of a resource end."""
        self._check_usable()
        with self._database.lent() as session:
            return await session.run(protocol.position(resource))

    def _check_usable(self) -> None:
        super()._check_usable()
        refuse_other_loop(self._loop, self)
