"""SQLAlchemy 2 in asyncio: as sqlalchemy.py, awaited, on psycopg or asyncpg."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Self, TypeAlias, TypeVar

from psycopg import AsyncConnection as _Psycopg
from sqlalchemy import Connection, Engine, Pool
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.ext.asyncio import AsyncSession as OrmSession
from sqlalchemy.util import greenlet_spawn

from pgfence import errors
from pgfence.client.protocol import (
    Batch,
    Commit,
    Failed,
    Left,
    Reopen,
    Rollback,
    Row,
    Step,
    Steps,
    Work,
)
from pgfence.drivers import psycopg_async
from pgfence.drivers.async_session import AsyncSession, drive, uncut
from pgfence.drivers.psycopg import CANCEL, LEFT, cut
from pgfence.drivers.sqlalchemy import (
    Guarded,
    RollBack,
    bind_of,
    engine_for,
    lost_before_commit,
    parameters,
    refuse_autocommit,
    refuse_others,
    report,
    statement,
)

#: What a caller may have a transaction open on.
Caller: TypeAlias = AsyncConnection | OrmSession | async_scoped_session[Any]
#: What an application begins its transactions with; `work` gets the one or the other.
Source: TypeAlias = AsyncEngine | async_sessionmaker[Any]
_T = TypeVar("_T")
#: The SQLSTATE of every statement after one that failed.
_FAILED = "25P02"


class _Session(AsyncSession):
    """As `Session` in sqlalchemy.py; what is not about a segment is the driver's own session's."""

    _source: Source
    _pool: Pool
    _segment: "_Transaction | None" = None

    async def _perform(self, step: Step) -> object:
        try:
            match step:
                case Batch(begin=True, within=None):
                    return await self._stoppable(self._begin_segment(step))
                case Batch(begin=True):
                    return await self._begin_segment(step)
                case Work():
                    assert self._segment is not None  # noqa: S101 - a Batch came before
                    await self._run_work(self._segment.given)
                    return await self._segment.left()
                case Commit():
                    assert self._segment is not None  # noqa: S101 - a Batch came before
                    await self._segment.commit()
                    self._segment = None
                case Rollback():
                    await self._roll_back()
                case Reopen():
                    # The next step opens what it needs: the one kind of connection or the other.
                    self._close()
                case _:
                    return await super()._perform(step)
        except DBAPIError as error:
            report(error)
        return None

    async def _begin_segment(self, batch: Batch) -> list[list[Row]]:
        try:
            self._segment = segment = await _Transaction.begin(self._source)
        except DBAPIError as error:
            report(error, lost=True)
        except OSError as error:  # asyncpg's, where nothing answers
            raise Failed(str(error), lost=True) from error
        try:
            async with asyncio.timeout(batch.within):
                return await _run(segment.connection, batch)
        except TimeoutError as error:
            raise Failed(f"no answer within {batch.within} s", lost=True) from error

    async def _roll_back(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            await segment.roll_back()

    def _close(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            uncut(segment.abandon())
        super()._close()  # type: ignore[safe-super]

    def _cut(self) -> None:
        segment = self._segment
        if segment is None:
            super()._cut()
        elif isinstance(segment.raw, _Psycopg) and not segment.connection.closed:
            cut(segment.raw)  # asyncpg itself waits for nobody

    async def _abandon(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            await segment.abandon()
        await super()._abandon()  # type: ignore[safe-super]

    def _in_transaction(self) -> bool:
        return self._segment is not None or super()._in_transaction()  # type: ignore[safe-super]


class _OnPsycopg(_Session, psycopg_async.Session):
    def __init__(self, source: Source, pool: Pool) -> None:
        super().__init__("", prepare_threshold=None)
        self._source, self._pool = source, pool

    async def _new(self, timeout: int) -> psycopg_async.Connection:
        conn: psycopg_async.Connection = await _opened(self._pool, timeout)
        await conn.set_autocommit(True)
        return conn


def _on_asyncpg(source: Source, pool: Pool) -> AsyncSession:
    from pgfence.drivers import asyncpg

    class OnAsyncpg(_Session, asyncpg.Session):
        async def _new(self, timeout: float) -> Any:
            return await _opened(pool, timeout)

    session = OnAsyncpg("", prepare_threshold=None)
    session._source, session._pool = source, pool
    return session


class _Transaction(Guarded):
    """As in sqlalchemy.py. A statement that is cancelled has SQLAlchemy close the connection."""

    def __init__(self, context: "_Context", begun: "_Begun") -> None:
        self._context: _Context | None = context
        #: What the work function gets, and its Connection.
        self.given, self.connection, self.raw = begun
        super().__init__(_sync(self.given), _sync(self.connection))

    @classmethod
    async def begin(cls, source: Source) -> Self:
        context = _begin(source)
        return cls(context, await context.__aenter__())

    async def left(self) -> Left:
        """What the work function left, after what it left to be flushed."""
        if self.is_undone():
            return Left.ABORTED
        if self.raw.closed if isinstance(self.raw, _Psycopg) else self.raw.is_closed():
            raise lost_before_commit()
        if isinstance(self.given, OrmSession):
            await self.given.flush()
        if isinstance(self.raw, _Psycopg):
            return LEFT[self.raw.pgconn.transaction_status]
        if not self.raw.is_in_transaction():
            return Left.ENDED
        return Left.ABORTED if await self._has_failed() else Left.OPEN

    async def _has_failed(self) -> bool:
        """Whether a statement has failed in the transaction, which asyncpg does not tell."""
        try:
            await self.connection.exec_driver_sql("select 1")
        except DBAPIError as error:
            if errors.said_by(error).sqlstate == _FAILED:
                return True
            raise
        return False

    async def commit(self) -> None:
        with self.committing():
            await self._leave(None)

    async def roll_back(self) -> None:
        with suppress(SQLAlchemyError):
            await self._leave(RollBack())

    async def abandon(self) -> None:
        """Roll back, or close the connection, without waiting for long."""
        with suppress(Exception):
            async with asyncio.timeout(CANCEL):
                await self._leave(RollBack())

    async def _leave(self, error: RollBack | None) -> None:
        context, self._context = self._context, None
        if context is not None:
            await context.__aexit__(type(error) if error else None, error, None)


@asynccontextmanager
async def _begin(source: Source) -> AsyncIterator["_Begun"]:
    """Begin a transaction as the application does; commits, or rolls back on an exception."""
    given: AsyncConnection | OrmSession
    async with AsyncExitStack() as stack:
        if isinstance(source, AsyncEngine):
            given = connection = await stack.enter_async_context(source.connect())
            await stack.enter_async_context(connection.begin())
        else:
            given = await stack.enter_async_context(source())
            await stack.enter_async_context(given.begin())
            connection = await given.connection()
        refuse_autocommit(_sync(connection))
        yield given, connection, (await connection.get_raw_connection()).driver_connection


_Begun: TypeAlias = tuple[AsyncConnection | OrmSession, AsyncConnection, Any]
_Context: TypeAlias = AbstractAsyncContextManager[_Begun]


def _sync(handle: AsyncConnection | OrmSession) -> Any:
    """The synchronous side of it, which has the events and the state."""
    return handle.sync_session if isinstance(handle, OrmSession) else handle.sync_connection


async def _opened(pool: Pool, timeout: float) -> Any:
    """A connection as the Engine opens it: its URL, arguments and events."""

    def connect() -> Any:
        pooled = pool.connect()
        raw = pooled.driver_connection
        pooled.detach()
        return raw

    try:
        async with asyncio.timeout(timeout):
            return await greenlet_spawn(connect)
    except Exception as error:  # the driver's, or whatever an event of the application's raises
        raise Failed(str(error) or f"no connection within {timeout} s", lost=True) from error


def sessions(source: Source) -> Callable[[], AsyncSession]:
    """What makes sessions on an AsyncEngine or async_sessionmaker.

    Raises `InvalidArgumentError` if it is neither, or none that we can use.
    """
    if isinstance(source, AsyncEngine):
        bind: Engine | Connection = source.sync_engine
    elif isinstance(source, async_sessionmaker):
        bind = bind_of(source().sync_session)
    else:
        raise errors.InvalidArgumentError(
            f"connect_async takes a DSN, an AsyncEngine or an async_sessionmaker, not {source!r}"
        )
    engine = engine_for(bind, "postgresql+psycopg", "postgresql+asyncpg")
    make = _OnPsycopg if engine.dialect.driver == "psycopg" else _on_asyncpg
    return lambda: make(source, engine.pool.recreate())


async def run_within(caller: Caller, steps: Steps[_T]) -> _T:
    """As `run_within` in sqlalchemy.py."""
    if isinstance(caller, AsyncConnection):
        connection = caller
    elif isinstance(caller, OrmSession | async_scoped_session):
        connection = await caller.connection()
    else:
        raise errors.InvalidArgumentError(
            "apply takes a connection of psycopg or asyncpg, or an AsyncConnection, AsyncSession "
            f"or async_scoped_session of SQLAlchemy, not {caller!r}"
        )
    refuse_others(connection.dialect)
    refuse_autocommit(_sync(connection))

    async def perform(step: Step) -> object:
        assert isinstance(step, Batch)  # noqa: S101 - nothing else is the driver's to do here
        try:
            return await _run(connection, step)
        except DBAPIError as error:
            report(error)

    return await drive(steps, perform)


async def _run(connection: AsyncConnection, batch: Batch) -> list[list[Row]]:
    return [
        list((await connection.execute(statement(call.sql), parameters(call))).all())
        for call in batch.calls
    ]
