"""How the suite speaks to a driver: synchronously, whatever the driver is."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import asyncpg
import psycopg
from psycopg import conninfo
from psycopg.rows import dict_row
from sqlalchemy import Engine, create_engine, orm, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

import pgfence
from pgfence.client.async_lease import AsyncLost
from pgfence.model.outcome import Outcome
from pgfence.model.receipt import Position, Receipt
from pgfence.model.verdict import Verdict

_T = TypeVar("_T")
#: Runs one statement with $1 placeholders in the open transaction.
Execute = Callable[..., object]


class Lost(Protocol):
    """What the suite uses of a lease's event."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Lease(Protocol):
    """What the suite uses of a lease."""

    token: str
    shown: Any
    lost: Lost

    @property
    def resource(self) -> str: ...
    @property
    def fence_token(self) -> int: ...
    @property
    def next_segment(self) -> int: ...
    @property
    def operation_root(self) -> str: ...
    @property
    def state(self) -> pgfence.State: ...
    @property
    def grant(self) -> Any: ...
    def apply(
        self, payload: object, work: Callable[[Execute], object], *, segment: int | None = None
    ) -> Receipt: ...
    def apply_many(
        self,
        segments: Sequence[tuple[object, Callable[[Execute], object]]],
        *,
        segment: int | None = None,
    ) -> list[Receipt]: ...
    def map(
        self,
        compute: Callable[[Any], Any],
        items: Iterable[Any],
        work: Callable[[Execute, Any], object],
        **options: Any,
    ) -> list[Receipt]: ...
    def on_lost(self, function: Callable[[], object]) -> None: ...
    def advance(self) -> Verdict: ...
    def position(self) -> Position: ...
    def wait_held(self, timeout: float | None = None) -> None: ...
    def release(self) -> None: ...
    def renew_now(self) -> None: ...


class Fence(Protocol):
    """What the suite uses of a fence."""

    def hold(self, resource: str, **options: Any) -> AbstractContextManager[Lease]: ...
    def position(self, resource: str) -> Position: ...
    def accept_loss(self, error: pgfence.AcknowledgedSegmentsLostError) -> None: ...
    def reconcile(self, unknown: Any, *, grant: Any = None) -> Outcome: ...
    def apply(self, conn: Any, grant: Any, segment: int, payload: object) -> Verdict: ...
    def close(self) -> None: ...


class Driver(Protocol):
    """One driver under test."""

    name: str

    def connect(self, dsn: str, **options: Any) -> Fence: ...

    def transaction(self, dsn: str) -> AbstractContextManager[tuple[Any, Execute]]:
        """A caller's own connection in a transaction, and how to run a statement on it.

        Commits on leaving, and rolls back if the block raises.
        """
        ...


class _PsycopgLease:
    def __init__(self, lease: pgfence.Lease[Any]) -> None:
        self._lease = lease

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lease, name)

    def apply(
        self, payload: object, work: Callable[[Execute], object], *, segment: int | None = None
    ) -> Receipt:
        return self._lease.apply(payload, self._given(work), segment=segment)

    def apply_many(
        self,
        segments: Sequence[tuple[object, Callable[[Execute], object]]],
        *,
        segment: int | None = None,
    ) -> list[Receipt]:
        given = [(payload, self._given(work)) for payload, work in segments]
        return self._lease.apply_many(given, segment=segment)

    def map(
        self,
        compute: Callable[[Any], Any],
        items: Iterable[Any],
        work: Callable[[Execute, Any], object],
        **options: Any,
    ) -> list[Receipt]:
        return self._lease.map(
            compute, items, lambda tx, computed: work(self._execute(tx), computed), **options
        )

    def _given(self, work: Callable[[Execute], object]) -> Callable[[Any], object]:
        return lambda tx: work(self._execute(tx))

    def _execute(self, tx: Any) -> Execute:
        return _execute_on(tx)

    def renew_now(self) -> None:
        """Not only when a third of the lease is over: so a test need not have a short one."""
        self._lease._registry_session.wake()


class _PsycopgFence:
    def __init__(self, fence: pgfence.Fence) -> None:
        self._fence = fence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fence, name)

    @contextmanager
    def hold(self, resource: str, **options: Any) -> Iterator[Any]:
        with self._fence.hold(resource, **options) as lease:
            yield _PsycopgLease(lease)


class Psycopg:
    """psycopg 3, synchronous."""

    name = "psycopg"

    def connect(self, dsn: str, **options: Any) -> Any:
        return _PsycopgFence(pgfence.connect(dsn, **options))

    @contextmanager
    def transaction(self, dsn: str) -> Iterator[tuple[Any, Execute]]:
        # Another row factory than ours: a caller's connection is the caller's.
        with psycopg.connect(dsn, row_factory=dict_row) as conn:
            yield conn, _execute_on(conn)


def _execute_on(conn: psycopg.Connection[Any]) -> Execute:
    def execute(query: str, *parameters: object) -> object:
        return psycopg.RawCursor(conn).execute(query, parameters)

    return execute


class Portal:
    """An event loop in a thread, for a suite that does not await."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="portal", daemon=True).start()
        return loop

    def call(self, doing: Coroutine[Any, Any, _T]) -> _T:
        """Run it in the loop, in the calling thread's context."""
        if os.getpid() != self._process:  # a forked child has the loop, and no thread that runs it
            return asyncio.run(doing)
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result()

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[_T]) -> Iterator[_T]:
        """`async with`, for a suite that does not."""
        value = self.call(manager.__aenter__())
        try:
            yield value
        except BaseException as error:
            if not self.call(manager.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.call(manager.__aexit__(None, None, None))


_portal = Portal()


class _Bridge:
    """Runs a work function of the suite in a thread, and its statements in the task of the work."""

    def __init__(self, execute: Callable[..., Coroutine[Any, Any, object]]) -> None:
        self._execute = execute
        self._loop = asyncio.get_running_loop()
        self._asked: asyncio.Queue[tuple[tuple[Any, ...], Future[object]] | None] = asyncio.Queue()
        self._over = False

    async def run(self, work: Callable[[Execute], object]) -> None:
        thread = asyncio.ensure_future(asyncio.to_thread(self._work, work))
        try:
            while (asked := await self._asked.get()) is not None:
                query, reply = asked
                try:
                    reply.set_result(await self._execute(*query))
                except BaseException as error:
                    reply.set_exception(error)
                    if isinstance(error, asyncio.CancelledError):
                        raise
            await thread
        finally:
            self._over = True

    def _work(self, work: Callable[[Execute], object]) -> None:
        try:
            work(self._ask)
        finally:
            self._loop.call_soon_threadsafe(self._asked.put_nowait, None)

    def _ask(self, *query: Any) -> object:
        if self._over:
            raise RuntimeError("the work was cancelled")
        reply: Future[object] = Future()
        self._loop.call_soon_threadsafe(self._asked.put_nowait, (query, reply))
        return reply.result()


class _AsyncLost:
    def __init__(self, lost: AsyncLost) -> None:
        self._lost = lost

    def is_set(self) -> bool:
        return self._lost.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return _portal.call(self._lost.wait(timeout))


class _AsyncLease:
    def __init__(self, lease: pgfence.AsyncLease, driver: AsyncDriver) -> None:
        self._lease = lease
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lease, name)

    def apply(
        self, payload: object, work: Callable[[Execute], object], *, segment: int | None = None
    ) -> Receipt:
        return _portal.call(self._lease.apply(payload, self._given(work), segment=segment))

    def apply_many(
        self,
        segments: Sequence[tuple[object, Callable[[Execute], object]]],
        *,
        segment: int | None = None,
    ) -> list[Receipt]:
        given = [(payload, self._given(work)) for payload, work in segments]
        return _portal.call(self._lease.apply_many(given, segment=segment))

    def _given(self, work: Callable[[Execute], object]) -> Callable[[Any], Awaitable[None]]:
        async def awaited(tx: Any) -> None:
            await _Bridge(lambda *query: self._driver.execute(tx, *query)).run(work)

        return awaited

    def map(
        self,
        compute: Callable[[Any], Any],
        items: Iterable[Any],
        work: Callable[[Execute, Any], object],
        **options: Any,
    ) -> list[Receipt]:
        async def awaited(tx: Any, computed: Any) -> None:
            await self._given(lambda execute: work(execute, computed))(tx)

        async def computed(item: Any) -> Any:
            return await asyncio.to_thread(compute, item)

        return _portal.call(self._lease.map(computed, items, awaited, **options))

    def advance(self) -> Verdict:
        return _portal.call(self._lease.advance())

    def position(self) -> Position:
        return _portal.call(self._lease.position())

    @property
    def lost(self) -> _AsyncLost:
        return _AsyncLost(self._lease.lost)

    def on_lost(self, function: Callable[[], object]) -> None:
        async def on_lost() -> None:
            self._lease.on_lost(function)

        _portal.call(on_lost())

    def wait_held(self, timeout: float | None = None) -> None:
        _portal.call(self._lease.wait_held(timeout))

    def release(self) -> None:
        _portal.call(self._lease.release())

    def renew_now(self) -> None:
        async def renew_now() -> None:
            self._lease._registry_session.wake()

        _portal.call(renew_now())


class _AsyncFence:
    def __init__(self, fence: pgfence.AsyncFence, driver: AsyncDriver) -> None:
        self._fence = fence
        self._driver = driver

    @contextmanager
    def hold(self, resource: str, **options: Any) -> Iterator[Any]:
        with _portal.entered(self._fence.hold(resource, **options)) as lease:
            yield _AsyncLease(lease, self._driver)

    def position(self, resource: str) -> Position:
        return _portal.call(self._fence.position(resource))

    def accept_loss(self, error: pgfence.AcknowledgedSegmentsLostError) -> None:
        self._fence.accept_loss(error)

    def reconcile(self, unknown: Any, *, grant: Any = None) -> Outcome:
        return _portal.call(self._fence.reconcile(unknown, grant=grant))

    def apply(self, conn: Any, grant: Any, segment: int, payload: object) -> Verdict:
        return _portal.call(self._fence.apply(conn, grant, segment, payload))

    def close(self) -> None:
        _portal.call(self._fence.close())


class AsyncDriver(ABC):
    """A driver of `connect_async`."""

    name: str
    driver: Literal["psycopg", "asyncpg"]

    def connect(self, dsn: str, **options: Any) -> Any:
        return _AsyncFence(_portal.call(self.connect_async(dsn, **options)), self)

    async def connect_async(self, dsn: str, **options: Any) -> pgfence.AsyncFence:
        return await pgfence.connect_async(dsn, driver=self.driver, **options)

    @contextmanager
    def transaction(self, dsn: str) -> Iterator[tuple[Any, Execute]]:
        with _portal.entered(self.own(dsn)) as conn:
            yield conn, self.execute_on(conn)

    def execute_on(self, conn: Any) -> Execute:
        def execute(query: str, *parameters: object) -> object:
            return _portal.call(self.execute(conn, query, *parameters))

        return execute

    @abstractmethod
    def own(self, dsn: str) -> AbstractAsyncContextManager[Any]:
        """A caller's own connection in a transaction."""

    @abstractmethod
    async def execute(self, conn: Any, query: str, *parameters: object) -> object: ...


class PsycopgAsync(AsyncDriver):
    """psycopg 3 in asyncio."""

    name = "psycopg async"
    driver = "psycopg"

    @asynccontextmanager
    async def own(self, dsn: str) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as conn:
            yield conn

    async def execute(self, conn: Any, query: str, *parameters: object) -> object:
        return await psycopg.AsyncRawCursor(conn).execute(query, parameters)


class Asyncpg(AsyncDriver):
    """asyncpg."""

    name = "asyncpg"
    driver = "asyncpg"

    @asynccontextmanager
    async def own(self, dsn: str) -> AsyncIterator[Any]:
        parameters: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
        parameters["database"] = parameters.pop("dbname")
        # As it must be behind pgbouncer.
        conn = await asyncpg.connect(**parameters, statement_cache_size=0)
        try:
            async with conn.transaction():
                yield conn
        finally:
            await conn.close()

    async def execute(self, conn: Any, query: str, *parameters: object) -> object:
        return await conn.fetch(query, *parameters)


class _SqlalchemyFence:
    def __init__(self, engine: Engine, **options: Any) -> None:
        self._engine = engine
        self._fence = pgfence.connect(orm.sessionmaker(engine), **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fence, name)

    @contextmanager
    def hold(self, resource: str, **options: Any) -> Iterator[Any]:
        with self._fence.hold(resource, **options) as lease:
            yield _SqlalchemyLease(lease)

    def close(self) -> None:
        self._fence.close()
        self._engine.dispose()


class _SqlalchemyLease(_PsycopgLease):
    def _execute(self, tx: Any) -> Execute:
        return _execute_in(tx)


class Sqlalchemy:
    """SQLAlchemy, synchronous, with Sessions."""

    name = "sqlalchemy"

    def connect(self, dsn: str, **options: Any) -> Any:
        engine = sqlalchemy_engine(dsn)
        try:
            return _SqlalchemyFence(engine, **options)
        except BaseException:
            engine.dispose()
            raise

    @contextmanager
    def transaction(self, dsn: str) -> Iterator[tuple[Any, Execute]]:
        engine = sqlalchemy_engine(dsn)
        try:
            with orm.Session(engine) as session, session.begin():
                yield session, _execute_in(session)
        finally:
            engine.dispose()


def sqlalchemy_engine(dsn: str, **options: Any) -> Engine:
    """An Engine as an application makes one for use behind a pooler."""
    arguments = conninfo.conninfo_to_dict(dsn) | {"prepare_threshold": None}
    return create_engine("postgresql+psycopg://", connect_args=arguments, **options)


def _execute_in(session: orm.Session) -> Execute:
    def execute(query: str, *parameters: object) -> object:
        named = {f"p{number}": value for number, value in enumerate(parameters, 1)}
        return session.execute(text(re.sub(r"\$(\d+)", r":p\1", query)), named)

    return execute


class SqlalchemyAsync(AsyncDriver):
    """SQLAlchemy in asyncio, with AsyncSessions."""

    name = "sqlalchemy async"

    async def connect_async(self, dsn: str, **options: Any) -> pgfence.AsyncFence:
        engine = self._engine(dsn)
        try:
            fence = await pgfence.connect_async(async_sessionmaker(engine), **options)
        except BaseException:
            await engine.dispose()
            raise
        close = fence.close

        async def close_both() -> None:
            await close()
            await engine.dispose()

        fence.close = close_both  # type: ignore[method-assign]
        return fence

    @asynccontextmanager
    async def own(self, dsn: str) -> AsyncIterator[Any]:
        engine = self._engine(dsn)
        try:
            async with AsyncSession(engine) as session, session.begin():
                yield session
        finally:
            await engine.dispose()

    async def execute(self, conn: Any, query: str, *parameters: object) -> object:
        named = {f"p{number}": value for number, value in enumerate(parameters, 1)}
        return await conn.execute(text(re.sub(r"\$(\d+)", r":p\1", query)), named)

    def _engine(self, dsn: str) -> AsyncEngine:
        return sqlalchemy_async_engine(dsn)


class SqlalchemyAsyncpg(SqlalchemyAsync):
    """The same on asyncpg."""

    name = "sqlalchemy asyncpg"

    def _engine(self, dsn: str) -> AsyncEngine:
        return sqlalchemy_asyncpg_engine(dsn)


def sqlalchemy_async_engine(dsn: str, **options: Any) -> AsyncEngine:
    """An AsyncEngine as an application makes one for use behind a pooler."""
    arguments = conninfo.conninfo_to_dict(dsn) | {"prepare_threshold": None}
    return create_async_engine("postgresql+psycopg://", connect_args=arguments, **options)


def sqlalchemy_asyncpg_engine(dsn: str, **options: Any) -> AsyncEngine:
    """The same on asyncpg, which needs more for that."""
    arguments: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
    arguments["database"] = arguments.pop("dbname")
    arguments["ssl"] = arguments.pop("sslmode", "prefer")
    arguments |= {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: f"__asyncpg_{uuid.uuid4()}__",
    }
    return create_async_engine("postgresql+asyncpg://", connect_args=arguments, **options)


DRIVERS: list[Driver] = [
    Psycopg(),
    PsycopgAsync(),
    Asyncpg(),
    Sqlalchemy(),
    SqlalchemyAsync(),
    SqlalchemyAsyncpg(),
]
