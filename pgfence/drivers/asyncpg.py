"""asyncpg: runs the protocol's steps on connections of ours or on a caller's.

asyncpg has no pipeline, so a segment takes three round trips besides those of its work (BEGIN, look
and call as one statement, COMMIT), where psycopg takes two.
"""

import asyncio
from contextlib import suppress
from math import inf
from typing import Any, NoReturn, TypeAlias, TypeVar
from urllib.parse import urlencode

import asyncpg
from asyncpg.transaction import Transaction
from psycopg import conninfo

from pgfence import errors
from pgfence.client.protocol import SHORTEST_CALL, Batch, Failed, Left, Row, Step, Steps
from pgfence.drivers.async_session import AsyncSession, drive
from pgfence.drivers.psycopg import CANCEL, NO_TRANSACTION, STANDBY

#: An `asyncpg.Connection` or a pool's proxy of one; asyncpg has no types to tell.
Connection: TypeAlias = Any
_T = TypeVar("_T")
#: What asyncpg raises for what the server reports, and for misuse.
_REPORTED = (asyncpg.PostgresError, asyncpg.InterfaceError)
#: That, and what it raises when the network fails, a TimeoutError among it.
_ANY = (*_REPORTED, asyncpg.InternalClientError, OSError)
_CANCELED = "57014"


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """Remembers how the server answered to the latest command, COMMIT for instance."""

    __slots__ = ("answer",)

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        answer: str = await super().execute(query, *args, timeout=timeout)
        self.answer = answer
        return answer


class Session(AsyncSession):
    """An asyncpg connection of our own.

    Whatever the login role's defaults are, or others have set on a pooled connection, a transaction
    is READ COMMITTED, READ WRITE and ours. Behind a pooler no prepared statement outlives its
    transaction, and nobody listens: the next statement may go to another server session.
    prepare_threshold: None has asyncpg prepare nothing in any case.
    """

    def __init__(self, dsn: str, *, prepare_threshold: int | None) -> None:
        super().__init__()
        self._parameters = conninfo.conninfo_to_dict(dsn)
        self._cache = prepare_threshold is not None
        self._conn: _Connection | None = None
        #: Whether a pooler stands between us and the server.
        self._pooled = False
        self._transaction: Transaction | None = None
        self._channel: str | None = None
        #: Set by a notification, and by the end of the connection.
        self._told = asyncio.Event()

    async def _open(self, within: float = inf) -> _Connection:
        if self._conn is None or self._conn.is_closed():
            self._close()
            try:
                self._conn = await self._connect(min(self.connect_timeout, within))
            except _ANY as error:
                raise Failed.of(error, lost=True) from error
            self._conn.add_termination_listener(self._hear)
        return self._conn

    async def _connect(self, within: float) -> _Connection:
        given = self._parameters.get("connect_timeout")
        timeout = float(given or max(2.0, within))
        conn = await self._new(timeout)
        try:
            async with asyncio.timeout(timeout):
                self._pooled = await _is_pooled(conn)
                if not self._pooled:
                    await conn.execute("set default_transaction_read_only = off")
        except BaseException:
            conn.terminate()
            raise
        if self._pooled and self._cache:
            # What it prepares is decided when it connects.
            conn.terminate()
            self._cache = False
            return await self._connect(within)
        return conn

    async def _new(self, timeout: float) -> _Connection:
        parameters = self._parameters.copy()
        parameters.pop("connect_timeout", None)
        conn: _Connection = await asyncpg.connect(
            f"postgresql://?{urlencode(parameters)}",
            timeout=timeout,
            connection_class=_Connection,
            **({} if self._cache else {"statement_cache_size": 0}),
        )
        return conn

    def _close(self) -> None:
        conn, self._conn = self._conn, None
        self._transaction = self._channel = None
        if conn is not None:
            conn.terminate()

    async def _abandon(self) -> None:
        if self._conn is not None:
            # Waits until the server has cancelled what was running.
            with suppress(*_ANY):
                await self._conn.close(timeout=CANCEL)
        self._close()

    def _in_transaction(self) -> bool:
        return self._transaction is not None or (
            self._conn is not None and not self._conn.is_closed() and self._conn.is_in_transaction()
        )

    async def _perform(self, step: Step) -> object:
        try:
            return await super()._perform(step)
        except _REPORTED as error:
            raise Failed.of(error, lost=self._conn is None or self._conn.is_closed()) from error

    async def _batch(self, batch: Batch) -> list[list[Row]]:
        conn = await self._open(batch.within or inf)
        try:
            async with asyncio.timeout(batch.within):
                return await (self._begin(conn, batch) if batch.begin else _alone(conn, batch))
        except TimeoutError:
            await self._settle(conn)
        except _ANY as error:
            raise Failed.of(error, lost=conn.is_closed()) from error

    async def _begin(self, conn: _Connection, batch: Batch) -> list[list[Row]]:
        # A Transaction and no BEGIN of our own: transactions of the work function are savepoints.
        self._transaction = conn.transaction(isolation="read_committed")
        try:
            await self._transaction.start()
        except BaseException:
            # asyncpg would take the next one for a savepoint of this one.
            self._close()
            raise
        if self._pooled:
            await conn.execute("set transaction read write")
        return await _rows(conn, batch)

    async def _settle(self, conn: _Connection) -> NoReturn:
        """After a time limit: whether the server heard of the cancellation."""
        error = TimeoutError("no answer in time")
        with suppress(*_ANY):
            async with asyncio.timeout(CANCEL):
                await conn.execute("rollback")
            raise Failed(str(error), lost=False, sqlstate=_CANCELED) from error
        self._close()
        raise Failed(str(error), lost=True) from error

    async def _call_work(self) -> Left:
        conn = self._conn
        assert conn is not None  # noqa: S101 - a Batch came before
        await self._run_work(conn)
        if conn.is_closed():
            raise asyncpg.ConnectionDoesNotExistError("the connection was lost before COMMIT")
        # Whether a statement has failed in it, asyncpg does not tell: COMMIT will.
        return Left.OPEN if conn.is_in_transaction() else Left.ENDED

    async def _commit(self) -> Left | None:
        conn, self._transaction, transaction = self._conn, None, self._transaction
        if conn is None or transaction is None:
            raise Failed("the connection was lost before COMMIT", lost=True)
        try:
            await transaction.commit()
        except _ANY as error:
            raise Failed.of(error, lost=conn.is_closed()) from error
        return Left.ABORTED if conn.answer == "ROLLBACK" else None

    async def _roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            await transaction.rollback()

    async def _listen(self, channel: str) -> bool:
        conn = await self._open()
        if self._pooled:
            return False
        # A session that is used again hears of its present request only.
        try:
            async with asyncio.timeout(SHORTEST_CALL):
                if self._channel is not None:
                    await conn.remove_listener(self._channel, self._hear)
                await conn.add_listener(channel, self._hear)
        except TimeoutError:
            await self._settle(conn)
        self._channel = channel
        return True

    def _hear(self, *_: object) -> None:
        self._told.set()

    async def _wait(self, seconds: float) -> None:
        conn = await self._open()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()
        self._told.clear()
        if conn.is_closed():
            raise Failed("the connection was lost while waiting", lost=True)


async def _is_pooled(conn: Connection) -> bool:
    """As `is_pooled` in drivers/psycopg.py, and without preparing anything."""
    if await conn.execute("select where pg_catalog.pg_is_in_recovery()") != "SELECT 0":
        raise asyncpg.CannotConnectNowError(STANDBY)
    pid = conn.get_server_pid()
    answer = await conn.execute(f"select where pg_catalog.pg_backend_pid() <> {pid:d}")
    return bool(answer != "SELECT 0")


async def _rows(conn: Connection, batch: Batch) -> list[list[Row]]:
    # A Record is no tuple: the caller's connection may make records of a class of its own, too.
    return [
        [tuple(record) for record in await conn.fetch(call.sql, *call.parameters)]
        for call in batch.calls
    ]


async def _alone(conn: _Connection, batch: Batch) -> list[list[Row]]:
    """The calls in a transaction of their own."""
    await conn.execute("begin isolation level read committed, read write")
    try:
        rows = await _rows(conn, batch)
    except _ANY:
        with suppress(*_ANY):
            await conn.execute("rollback")
        raise
    await conn.execute("commit")
    return rows


async def run_within(conn: Connection, steps: Steps[_T]) -> _T:
    """Drive `steps`, which are calls, in the transaction that the caller has open on `conn`."""
    if not conn.is_in_transaction():
        raise errors.InvalidArgumentError(NO_TRANSACTION)

    async def perform(step: Step) -> object:
        assert isinstance(step, Batch)  # noqa: S101 - nothing else is the driver's to do here
        try:
            return await _rows(conn, step)
        except _ANY as error:
            raise Failed.of(error, lost=conn.is_closed()) from error

    return await drive(steps, perform)
