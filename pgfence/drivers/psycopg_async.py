"""psycopg 3 in asyncio: runs the protocol's steps on connections of ours or on a caller's."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncRawCursor, IsolationLevel, conninfo, sql
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from pgfence.client.protocol import SHORTEST_CALL, Batch, Failed, Left, Row, Step, Steps
from pgfence.drivers.async_session import AsyncSession, drive, uncut
from pgfence.drivers.psycopg import (
    CANCEL,
    LEFT,
    STANDBY,
    WHO_ANSWERS,
    cut,
    idling_is_not_timed,
    interrupt_in,
    refuse_autocommit,
    report,
)

Connection = psycopg.AsyncConnection[Any]
_T = TypeVar("_T")


class Session(AsyncSession):
    """A psycopg connection of our own.

    It is in autocommit, so whatever the login role's defaults are, or others have set on a pooled
    connection, a transaction is READ COMMITTED, READ WRITE and ours. Behind a pooler nothing is
    prepared and nobody listens: the next statement may go to another server session.
    """

    def __init__(self, dsn: str, *, prepare_threshold: int | None) -> None:
        super().__init__()
        self._parameters = conninfo.conninfo_to_dict(dsn)
        self._prepare_threshold = prepare_threshold
        self._conn: Connection | None = None
        #: Whether a pooler stands between us and the server.
        self._pooled = False
        #: The connection's, kept because making one costs as much as running a statement with it.
        self._cursors: list[AsyncRawCursor[Row]] = []
        self._transaction: psycopg.AsyncTransaction | None = None

    async def _perform(self, step: Step) -> object:
        try:
            return await super()._perform(step)
        except psycopg.Error as error:
            report(error, lost=self._conn is None or self._conn.closed)

    async def _open(self, within: float = inf) -> Connection:
        if self._conn is None or self._conn.closed:
            self._close()
            # psycopg loses sight of a connection that is cancelled while it is made, and the server
            # waits a minute for it.
            connecting = uncut(self._connect(min(self.connect_timeout, within)))
            try:
                self._conn = await asyncio.shield(connecting)
            except psycopg.Error as error:
                report(error, lost=True)
            except asyncio.CancelledError:
                connecting.add_done_callback(_close_unused)
                raise
        return self._conn

    async def _connect(self, within: float) -> Connection:
        timeout = max(2, round(within))
        conn = await self._new(timeout)
        try:
            async with _time_limit(conn, timeout):
                self._pooled = await _is_pooled(conn)
        except BaseException:
            conn.pgconn.finish()
            raise
        if self._pooled:
            conn.prepare_threshold = None
        await conn.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await conn.set_read_only(False)
        return conn

    async def _new(self, timeout: int) -> Connection:
        parameters: dict[str, Any] = {"connect_timeout": timeout}
        return await psycopg.AsyncConnection.connect(
            conninfo.make_conninfo("", **(parameters | self._parameters)),
            autocommit=True,
            prepare_threshold=self._prepare_threshold,
        )

    def _close(self) -> None:
        conn, self._conn = self._conn, None
        self._transaction = None
        self._cursors = []
        if conn is not None:
            # What conn.close() does, without being a coroutine.
            conn.pgconn.finish()

    def _cut(self) -> None:
        if self._conn is not None:
            cut(self._conn)

    async def _abandon(self) -> None:
        # psycopg itself has cancelled the statement that was running.
        self._close()

    def _in_transaction(self) -> bool:
        return self._transaction is not None or (
            self._conn is not None
            and self._conn.pgconn.transaction_status != TransactionStatus.IDLE
        )

    async def _batch(self, batch: Batch) -> list[list[Row]]:
        conn = await self._open(batch.within or inf)
        # A Transaction and no BEGIN of our own: psycopg then refuses commit() and rollback() of the
        # work function. In pipeline mode entering and leaving it only queue the commands.
        transaction = psycopg.AsyncTransaction(conn)
        count = len(batch.calls)
        self._cursors += [_cursor(conn) for _ in range(len(self._cursors), count)]
        try:
            async with _time_limit(conn, batch.within):
                rows = await _round_trip(conn, batch, self._cursors[:count], transaction)
        except psycopg.Error:
            if batch.begin:
                await transaction.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)
            else:
                with suppress(psycopg.Error):
                    await conn.rollback()
            raise
        if batch.begin:
            self._transaction = transaction
        return rows

    async def _call_work(self) -> Left:
        conn = self._conn
        assert conn is not None  # noqa: S101 - a Batch came before
        await self._run_work(conn)
        left = LEFT.get(conn.pgconn.transaction_status)
        if left is None:
            raise psycopg.OperationalError("the connection was lost before COMMIT")
        return left

    async def _commit(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            raise Failed("the connection was lost before COMMIT", lost=True)
        await transaction.__aexit__(None, None, None)
        if transaction.status is not psycopg.AsyncTransaction.Status.COMMITTED:
            raise psycopg.OperationalError("the connection was lost before COMMIT")

    async def _roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            await transaction.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)

    async def _listen(self, channel: str) -> bool:
        conn = await self._open()
        if not self._pooled:
            # A session that is used again hears of its present request only.
            listen = sql.SQL("unlisten *; listen {}").format(sql.Identifier(channel))
            async with _time_limit(conn, SHORTEST_CALL):
                await conn.execute(listen)
        return not self._pooled

    async def _wait(self, seconds: float) -> None:
        conn = await self._open()
        async for _ in conn.notifies(timeout=seconds, stop_after=1):
            pass


def _close_unused(connecting: asyncio.Task[Connection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().pgconn.finish()


async def _is_pooled(conn: Connection) -> bool:
    """As `is_pooled` in drivers/psycopg.py."""
    cursor = await _cursor(conn).execute(WHO_ANSWERS)
    ((pid, standby),) = await cursor.fetchall()
    if standby:
        raise psycopg.OperationalError(STANDBY)
    return bool(pid != conn.info.backend_pid)


async def run_within(conn: Connection, steps: Steps[_T]) -> _T:
    """Drive `steps`, which are calls, in the transaction that the caller has open on `conn`."""
    refuse_autocommit(conn)

    async def perform(step: Step) -> object:
        assert isinstance(step, Batch)  # noqa: S101 - nothing else is the driver's to do here
        try:
            return await _round_trip(conn, step, [_cursor(conn) for _ in step.calls])
        except psycopg.Error as error:
            report(error, lost=conn.closed)

    return await drive(steps, perform)


def _cursor(conn: Connection) -> AsyncRawCursor[Row]:
    cursor = AsyncRawCursor(conn, row_factory=tuple_row)
    cursor.format = Format.BINARY  # as in drivers/psycopg.py
    return cursor


async def _round_trip(
    conn: Connection,
    batch: Batch,
    cursors: Sequence[AsyncRawCursor[Row]],
    transaction: psycopg.AsyncTransaction | None = None,
) -> list[list[Row]]:
    """Send the calls of a batch together; as its namesake in drivers/psycopg.py."""
    handled, before = sys.exception(), conn.pgconn.pipeline_status
    try:
        async with conn.pipeline():
            if transaction is not None:
                await transaction.__aenter__()
            for call, cursor in zip(batch.calls, cursors, strict=True):
                await cursor.execute(call.sql, call.parameters)
            if transaction is not None and not batch.begin:
                await transaction.__aexit__(None, None, None)
        if idling_is_not_timed(conn):
            await _cursor(conn).execute("")
    except BaseException as error:
        interrupt = interrupt_in(error, handled)
        if interrupt is None:
            if conn.pgconn.pipeline_status != before:
                conn.pgconn.finish()
            raise
        conn.pgconn.finish()
        raise interrupt from None
    return [await cursor.fetchall() for cursor in cursors]


@asynccontextmanager
async def _time_limit(conn: Connection, seconds: float | None) -> AsyncIterator[None]:
    """Cancel what runs on `conn` after so many seconds, and cut a connection that stays silent."""
    if seconds is None:
        yield
        return
    was_cut = False

    async def watch() -> None:
        nonlocal was_cut
        await asyncio.sleep(seconds)
        with suppress(psycopg.Error):
            await conn.cancel_safe(timeout=CANCEL)
        await asyncio.sleep(CANCEL)
        was_cut = True
        cut(conn)

    watcher = asyncio.create_task(watch(), name="pgfence time limit")
    try:
        yield
    except psycopg.Error as error:
        if was_cut:
            raise psycopg.OperationalError(f"no answer within {seconds:.3f} s") from error
        raise
    finally:
        watcher.cancel()
