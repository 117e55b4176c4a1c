"""psycopg 3, synchronous: runs the protocol's steps on connections of ours or on a caller's."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel, RawCursor, conninfo, sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgfence import errors
from pgfence.client.protocol import (
    Batch,
    Commit,
    Failed,
    Left,
    Listen,
    Reopen,
    Rollback,
    Row,
    Sleep,
    Step,
    Steps,
    Wait,
    Work,
)

Connection = psycopg.Connection[Any]
_T = TypeVar("_T")
_LEFT = {
    TransactionStatus.IDLE: Left.ENDED,
    TransactionStatus.INTRANS: Left.OPEN,
    TransactionStatus.INERROR: Left.ABORTED,
    TransactionStatus.ACTIVE: Left.ABORTED,
}
#: Seconds that a server gets to answer a cancellation before the connection is cut.
_CANCEL = 1.0


def run(steps: Steps[_T], perform: Callable[[Step], object]) -> _T:
    """Drive a protocol generator to its result."""
    try:
        step = next(steps)
        while True:
            try:
                reply = perform(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as stop:
        result: _T = stop.value
        return result


class Session:
    """A connection of our own: opened at the first step, and again after it was lost.

    It is in autocommit, so whatever the login role's defaults are, a transaction is READ COMMITTED
    and is ours. Not for two threads at once.
    """

    def __init__(self, dsn: str, *, prepare_threshold: int | None) -> None:
        self._parameters = conninfo.conninfo_to_dict(dsn)
        self._prepare_threshold = prepare_threshold
        self._conn: Connection | None = None
        self._transaction: psycopg.Transaction | None = None
        self._work: Callable[[Connection], object] | None = None
        #: Seconds that connecting may take, where the DSN does not say; libpq takes at least two.
        self.connect_timeout = 10.0
        #: What a `Sleep` step calls; it may return early.
        self.nap: Callable[[float], object] = time.sleep

    def run(self, steps: Steps[_T], work: Callable[[Connection], object] | None = None) -> _T:
        """Drive `steps`; `work` is what a `Work` step calls, with the connection."""
        self._work = work
        try:
            return run(steps, self._perform)
        finally:
            self._work = None
            if self._transaction is not None or (
                self._conn is not None
                and self._conn.info.transaction_status != TransactionStatus.IDLE
            ):
                self.close()

    def close(self) -> None:
        """Close the connection; the next step opens another one."""
        self._transaction = None
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _perform(self, step: Step) -> object:
        match step:
            case Batch():
                with self._connection() as conn, time_limit(conn, step.within):
                    return self._batch(conn, step)
            case Work():
                return self._call_work()
            case Commit():
                self._commit()
            case Rollback():
                self._roll_back()
            case Listen(channel):
                # A session that is used again hears of its present request only.
                listen = sql.SQL("unlisten *; listen {}").format(sql.Identifier(channel))
                with self._connection() as conn:
                    conn.execute(listen)
            case Wait(seconds):
                with self._connection() as conn:
                    return next(conn.notifies(timeout=seconds, stop_after=1), None)
            case Sleep(seconds):
                self.nap(seconds)
            case Reopen():
                self.close()
                self._open()
        return None

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        conn = self._open()
        with _reported(conn):
            yield conn

    def _open(self) -> Connection:
        if self._conn is None or self._conn.closed:
            self._transaction = None
            try:
                parameters: dict[str, Any] = {
                    "connect_timeout": max(2, round(self.connect_timeout))
                }
                self._conn = psycopg.connect(
                    conninfo.make_conninfo("", **(parameters | self._parameters)),
                    autocommit=True,
                    prepare_threshold=self._prepare_threshold,
                )
            except psycopg.Error as error:
                raise _failed(error, lost=True) from error
            self._conn.isolation_level = IsolationLevel.READ_COMMITTED
        return self._conn

    def _batch(self, conn: Connection, batch: Batch) -> list[list[Row]]:
        # A Transaction and no BEGIN of our own: psycopg then refuses commit() and rollback() of the
        # work function. In pipeline mode entering and leaving it only queue the commands.
        transaction = psycopg.Transaction(conn)
        try:
            with _pipeline(conn):
                transaction.__enter__()
                cursors = _send(conn, batch)
                if not batch.begin:
                    transaction.__exit__(None, None, None)
        except psycopg.Error:
            if batch.begin:
                transaction.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
            else:
                with suppress(psycopg.Error):
                    conn.rollback()
            raise
        if batch.begin:
            self._transaction = transaction
        return [cursor.fetchall() for cursor in cursors]

    def _call_work(self) -> Left:
        conn, work = self._conn, self._work
        assert conn is not None  # noqa: S101 - a Batch came before
        assert work is not None  # noqa: S101 - run() was called with one
        with _reported(conn):
            work(conn)
            left = _LEFT.get(conn.info.transaction_status)
            if left is None:
                raise psycopg.OperationalError("the connection was lost before COMMIT")
        return left

    def _commit(self) -> None:
        conn, transaction, self._transaction = self._conn, self._transaction, None
        if conn is None or transaction is None:
            raise Failed("the connection was lost before COMMIT", lost=True)
        with _reported(conn):
            transaction.__exit__(None, None, None)
            if transaction.status is not psycopg.Transaction.Status.COMMITTED:
                raise psycopg.OperationalError("the connection was lost before COMMIT")

    def _roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.__exit__(psycopg.Rollback, psycopg.Rollback(), None)


def run_within(conn: Connection, steps: Steps[_T]) -> _T:
    """Drive `steps` in the transaction that the caller has open on `conn`."""
    if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        raise errors.InvalidArgumentError(
            "the connection is in autocommit and no transaction is open: "
            "an admission would end with the call"
        )
    return run_on(conn, steps)


def run_on(conn: Connection, steps: Steps[_T]) -> _T:
    """Drive `steps` that consist of calls on a connection as it is."""

    def perform(step: Step) -> object:
        assert isinstance(step, Batch)  # noqa: S101 - nothing else is the driver's to do here
        with _reported(conn):
            with _pipeline(conn):
                cursors = _send(conn, step)
            return [cursor.fetchall() for cursor in cursors]

    return run(steps, perform)


def _send(conn: Connection, batch: Batch) -> list[RawCursor[Row]]:
    """Queue the calls of a batch; psycopg prepares them as the connection's owner wishes."""
    return [
        RawCursor(conn, row_factory=tuple_row).execute(call.sql, call.parameters)
        for call in batch.calls
    ]


@contextmanager
def _pipeline(conn: Connection) -> Iterator[None]:
    """psycopg's pipeline mode, with an interrupt (Ctrl-C, SystemExit) seen for what it is.

    An interrupt between two results leaves psycopg unable to leave pipeline mode, and its complaint
    about that would hide the interrupt. Such a connection is of no more use.
    """
    try:
        with conn.pipeline():
            yield
    except BaseException as error:
        interrupt: BaseException | None = error
        while isinstance(interrupt, Exception):
            interrupt = interrupt.__context__
        if interrupt is None:
            raise
        conn.close()
        raise interrupt from None


@contextmanager
def _reported(conn: Connection) -> Iterator[None]:
    """Turn psycopg's errors into the protocol's report."""
    try:
        yield
    except psycopg.Error as error:
        # Of a pipeline psycopg sometimes reports the last error, which the first one caused.
        while isinstance(error, psycopg.errors.PipelineAborted) and isinstance(
            error.__context__, psycopg.Error
        ):
            error = error.__context__
        raise _failed(error, lost=conn.closed) from error


def _failed(error: psycopg.Error, *, lost: bool) -> Failed:
    diag = error.diag
    return Failed(
        diag.message_primary or str(error),
        lost=lost or diag.severity_nonlocalized in ("FATAL", "PANIC"),
        sqlstate=error.sqlstate,
        detail=diag.message_detail,
        hint=diag.message_hint,
        rule=diag.constraint_name,
    )


@contextmanager
def time_limit(conn: Connection, seconds: float | None) -> Iterator[None]:
    """Cancel what runs on `conn` after so many seconds, and cut a connection that stays silent."""
    if seconds is None:
        yield
        return
    done, cut = threading.Event(), threading.Event()

    def watch() -> None:
        if done.wait(seconds):
            return
        with suppress(psycopg.Error):
            conn.cancel_safe(timeout=_CANCEL)
        if not done.wait(_CANCEL):
            cut.set()
            # It may be closed meanwhile, by either side.
            with (
                suppress(psycopg.Error, OSError),
                socket.socket(fileno=os.dup(conn.fileno())) as twin,
            ):
                twin.shutdown(socket.SHUT_RDWR)

    watcher = threading.Thread(target=watch, name="pgfence time limit", daemon=True)
    watcher.start()
    try:
        yield
    except psycopg.Error as error:
        if cut.is_set():
            raise psycopg.OperationalError(f"no answer within {seconds:.3f} s") from error
        raise
    finally:
        done.set()
        watcher.join()
