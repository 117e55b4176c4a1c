"""psycopg 3, synchronous: runs the protocol's steps on connections of ours or on a caller's."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from math import inf
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg import IsolationLevel, RawCursor, conninfo, sql
from psycopg.pq import Format, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from pgfence import errors
from pgfence.client.protocol import (
    SHORTEST_CALL,
    Batch,
    Commit,
    Failed,
    Left,
    Listen,
    On,
    Reopen,
    Rollback,
    Row,
    Run,
    Sleep,
    Step,
    Steps,
    Wait,
    Work,
)

Connection = psycopg.Connection[Any]
_S = TypeVar("_S")
_T = TypeVar("_T")
LEFT: dict[int, Left] = {
    TransactionStatus.IDLE: Left.ENDED,
    TransactionStatus.INTRANS: Left.OPEN,
    TransactionStatus.INERROR: Left.ABORTED,
    TransactionStatus.ACTIVE: Left.ABORTED,
}
#: Why a caller's connection is refused.
NO_TRANSACTION = (
    "the connection is in autocommit and no transaction is open: "
    "an admission would end with the call"
)
#: Why a connection is given up and tried again: after a failover it may lead to another server.
STANDBY = (
    "this server is a standby, which takes no writes: with several hosts in the DSN, give "
    "target_session_attrs=read-write"
)
STOPPED = "stopped, because the lease was lost"
#: Seconds that a server gets to answer a cancellation before the connection is cut.
CANCEL = 1.0
#: What a new connection is asked.
WHO_ANSWERS = "select pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery()"
#: Seconds that connecting may take for a process that is to stop when it is told to.
CONNECT = 10


def run(steps: Generator[_S, Any, _T], perform: Callable[[_S], object]) -> _T:
    """Drive a generator of steps to its result."""
    try:
        step = next(steps)
        while True:
            try:
                # What fails on another session is not a failure of this one.
                reply = step.session.run(step.steps) if isinstance(step, On) else perform(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as stop:
        result: _T = stop.value
        return result


class Session:
    """A connection of our own: opened at the first step, and again after it was lost.

    It is in autocommit, so whatever the login role's defaults are, or others have set on a pooled
    connection, a transaction is READ COMMITTED, READ WRITE and ours. Behind a pooler nothing is
    prepared and nobody listens: the next statement may go to another server session. Not for two
    threads at once.
    """

    def __init__(self, dsn: str, *, prepare_threshold: int | None) -> None:
        self._parameters = conninfo.conninfo_to_dict(dsn)
        self._prepare_threshold = prepare_threshold
        self._conn: Connection | None = None
        #: Whether a pooler stands between us and the server.
        self._pooled = False
        #: The connection's, kept because making one costs as much as running a statement with it.
        self._cursors: list[RawCursor[Row]] = []
        self._transaction: psycopg.Transaction | None = None
        self._work: Callable[[Any], object] | None = None
        #: The connection that the work function uses now, or the call that admits it.
        self._working: Connection | None = None
        self._stopped = False
        self._stopping = threading.Lock()
        #: Seconds that connecting to a host may take, where the DSN does not say.
        self.connect_timeout = 10.0
        self._wake = threading.Event()

    def run(self, steps: Steps[_T], work: Callable[[Any], object] | None = None) -> _T:
        """Drive `steps`; `work` is what a `Work` step calls, with the connection."""
        self._work = work
        self._wake.clear()
        try:
            return run(steps, self._perform)
        finally:
            self._work = None
            if self._transaction is not None or (
                self._conn is not None
                and self._conn.pgconn.transaction_status != TransactionStatus.IDLE
            ):
                self.close()

    def wake(self) -> None:
        """End a `Sleep` of the steps that it runs; for another thread."""
        self._wake.set()

    def stop_work(self) -> None:
        """Cancel what the work function runs, or the call that admits it, and cut the connection;
        for another thread. Neither begins on this session any more.

        Nothing happens when it has returned: a COMMIT is never cancelled, because PostgreSQL may
        then have committed all the same.
        """
        with self._stopping:
            self._stopped = True
            if self._working is not None:
                with suppress(psycopg.Error):
                    self._working.cancel_safe(timeout=CANCEL)
                cut(self._working)

    def close(self) -> None:
        """Close the connection; the next step opens another one."""
        self._transaction = None
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _perform(self, step: Step) -> object:
        try:
            return self._carry_out(step)
        except psycopg.Error as error:
            report(error, lost=self._conn is None or self._conn.closed)

    def _carry_out(self, step: Step) -> object:
        match step:
            case Batch(within=None):
                conn = self._open()
                with self._stoppable(conn) if step.begin else nullcontext():
                    return self._batch(conn, step)
            case Batch():
                conn = self._open(step.within or inf)
                with time_limit(conn, step.within):
                    return self._batch(conn, step)
            case Work():
                return self._call_work()
            case Commit():
                self._commit()
            case Rollback():
                self._roll_back()
            case Listen(channel):
                conn = self._open()
                if not self._pooled:
                    # A session that is used again hears of its present request only.
                    listen = sql.SQL("unlisten *; listen {}").format(sql.Identifier(channel))
                    with time_limit(conn, SHORTEST_CALL):
                        conn.execute(listen)
                return not self._pooled
            case Wait(seconds):
                return next(self._open().notifies(timeout=seconds, stop_after=1), None)
            case Sleep(seconds):
                if self._wake.wait(seconds):
                    self._wake.clear()
            case Run(function):
                return function()
            case Reopen(within):
                self.close()
                self._open(within)
        return None

    def _open(self, within: float = inf) -> Connection:
        if self._conn is None or self._conn.closed:
            self._transaction = None
            self._cursors = []
            try:
                self._conn = self._connect(min(self.connect_timeout, within))
            except psycopg.Error as error:
                report(error, lost=True)
        return self._conn

    def _connect(self, within: float) -> Connection:
        timeout = max(2, round(within))  # libpq takes at least two
        conn = self._new(timeout)
        try:
            with time_limit(conn, timeout):
                self._pooled = is_pooled(conn)
        except BaseException:
            conn.close()
            raise
        if self._pooled:
            conn.prepare_threshold = None
        conn.isolation_level = IsolationLevel.READ_COMMITTED
        conn.read_only = False
        return conn

    def _new(self, timeout: int) -> Connection:
        parameters: dict[str, Any] = {"connect_timeout": timeout}
        return psycopg.connect(
            conninfo.make_conninfo("", **(parameters | self._parameters)),
            autocommit=True,
            prepare_threshold=self._prepare_threshold,
        )

    def _batch(self, conn: Connection, batch: Batch) -> list[list[Row]]:
        # A Transaction and no BEGIN of our own: psycopg then refuses commit() and rollback() of the
        # work function. In pipeline mode entering and leaving it only queue the commands.
        transaction = psycopg.Transaction(conn)
        count = len(batch.calls)
        self._cursors += [_cursor(conn) for _ in range(len(self._cursors), count)]
        try:
            rows = _round_trip(conn, batch, self._cursors[:count], transaction)
        except psycopg.Error:
            if batch.begin:
                transaction.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
            else:
                with suppress(psycopg.Error):
                    conn.rollback()
            raise
        if batch.begin:
            self._transaction = transaction
        return rows

    def _call_work(self) -> Left:
        conn, work = self._conn, self._work
        assert conn is not None  # noqa: S101 - a Batch came before
        assert work is not None  # noqa: S101 - run() was called with one
        with self._stoppable(conn):
            work(conn)
        left = LEFT.get(conn.pgconn.transaction_status)
        if left is None:
            raise psycopg.OperationalError("the connection was lost before COMMIT")
        return left

    @contextmanager
    def _stoppable(self, conn: Connection) -> Iterator[None]:
        """The work function, or the call that admits it, runs on this connection in the block."""
        with self._stopping:
            if self._stopped:
                raise Failed(STOPPED, lost=False)
            self._working = conn
        try:
            yield
        finally:
            with self._stopping:
                self._working = None

    def _commit(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            raise Failed("the connection was lost before COMMIT", lost=True)
        transaction.__exit__(None, None, None)
        if transaction.status is not psycopg.Transaction.Status.COMMITTED:
            raise psycopg.OperationalError("the connection was lost before COMMIT")

    def _roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.__exit__(psycopg.Rollback, psycopg.Rollback(), None)


def is_pooled(conn: Connection) -> bool:
    """Whether a pooler stands before the server: it hands out process IDs that it made up, since
    the server's may be another one in each transaction.

    Raises psycopg's OperationalError for a standby.
    """
    ((pid, standby),) = _cursor(conn).execute(WHO_ANSWERS)
    if standby:
        raise psycopg.OperationalError(STANDBY)
    return bool(pid != conn.info.backend_pid)


def in_time(dsn: str) -> dict[str, Any]:
    """Parameters for connecting: the DSN's, and a time limit where it has none.

    A server may accept and stay silent; whoever waits for that does not hear a signal.
    """
    return {"connect_timeout": CONNECT} | conninfo.conninfo_to_dict(dsn)


def read_timestamps(conn: Connection) -> None:
    """Have psycopg understand the server's timestamps, whatever DateStyle the role, the database
    or the server has by default: in some, zones are names that no client knows.
    """
    if not (conn.info.parameter_status("DateStyle") or "").startswith("ISO"):
        conn.execute("set datestyle to iso")


def run_within(conn: Connection, steps: Steps[_T]) -> _T:
    """Drive `steps` in the transaction that the caller has open on `conn`."""
    refuse_autocommit(conn)
    return run_on(conn, steps)


def refuse_autocommit(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Raise `InvalidArgumentError` where a call would be a transaction of its own."""
    if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        raise errors.InvalidArgumentError(NO_TRANSACTION)


def run_on(conn: Connection, steps: Steps[_T]) -> _T:
    """Drive `steps` that consist of calls on a connection as it is."""

    def perform(step: Step) -> object:
        assert isinstance(step, Batch)  # noqa: S101 - nothing else is the driver's to do here
        try:
            return _round_trip(conn, step, [_cursor(conn) for _ in step.calls])
        except psycopg.Error as error:
            report(error, lost=conn.closed)

    return run(steps, perform)


def _cursor(conn: Connection) -> RawCursor[Row]:
    cursor = RawCursor(conn, row_factory=tuple_row)
    # As text, the server writes timestamps in the session's DateStyle.
    cursor.format = Format.BINARY
    return cursor


def _round_trip(
    conn: Connection,
    batch: Batch,
    cursors: Sequence[RawCursor[Row]],
    transaction: psycopg.Transaction | None = None,
) -> list[list[Row]]:
    """Send the calls of a batch together, psycopg's pipeline mode; the rows of each.

    cursors: one for each call. `transaction` begins in the same round trip, and ends in it unless
    the batch leaves it open. psycopg prepares the calls as the connection's owner wishes.
    """
    handled, before = sys.exception(), conn.pgconn.pipeline_status
    try:
        with conn.pipeline():
            if transaction is not None:
                transaction.__enter__()
            for call, cursor in zip(batch.calls, cursors, strict=True):
                cursor.execute(call.sql, call.parameters)
            if transaction is not None and not batch.begin:
                transaction.__exit__(None, None, None)
        if idling_is_not_timed(conn):
            _cursor(conn).execute("")
    except BaseException as error:
        interrupt = interrupt_in(error, handled)
        if interrupt is None:
            if conn.pgconn.pipeline_status != before:
                conn.close()  # a session that the server ends, for instance: no way out of it
            raise
        conn.close()
        raise interrupt from None
    return [cursor.fetchall() for cursor in cursors]


def idling_is_not_timed(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether the server has yet to be made to time how long this transaction idles (R20).

    psycopg ends a pipeline with a Flush, and that stops the server's timer for now.
    From PostgreSQL 17 on there is one for the whole transaction.
    """
    return (
        conn.info.server_version < 170_000
        and conn.info.transaction_status == TransactionStatus.INTRANS
        and conn.info.pipeline_status == PipelineStatus.OFF
    )


def interrupt_in(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """The interrupt (Ctrl-C, SystemExit, a task's cancellation) behind an error in a pipeline.

    Between two results it leaves psycopg unable to leave pipeline mode, and psycopg's complaint
    about that would hide it. Such a connection is of no more use.
    handled: what the caller was handling already, which is no interrupt of ours.
    """
    interrupt: BaseException | None = error
    while isinstance(interrupt, Exception) and interrupt is not handled:
        interrupt = interrupt.__context__
    return None if interrupt is handled else interrupt


def report(error: psycopg.Error, *, lost: bool) -> NoReturn:
    """Turn an error of psycopg's into the protocol's report."""
    # Of a pipeline psycopg sometimes reports the last error, which the first one caused.
    while isinstance(error, psycopg.errors.PipelineAborted) and isinstance(
        error.__context__, psycopg.Error
    ):
        error = error.__context__
    raise Failed.of(error, lost=lost) from error


@contextmanager
def time_limit(conn: Connection, seconds: float | None) -> Iterator[None]:
    """Cancel what runs on `conn` after so many seconds, and cut a connection that stays silent."""
    if seconds is None:
        yield
        return
    done, was_cut = threading.Event(), threading.Event()

    def watch() -> None:
        if done.wait(seconds):
            return
        with suppress(psycopg.Error):
            conn.cancel_safe(timeout=CANCEL)
        if not done.wait(CANCEL):
            was_cut.set()
            cut(conn)

    watcher = threading.Thread(target=watch, name="pgfence time limit", daemon=True)
    watcher.start()
    try:
        yield
    except psycopg.Error as error:
        if was_cut.is_set():
            raise psycopg.OperationalError(f"no answer within {seconds:.3f} s") from error
        raise
    finally:
        done.set()
        watcher.join()


def cut(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """End a connection that another thread uses; it may be closed meanwhile, by either side."""
    with (
        suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(conn.fileno())) as twin,
    ):
        twin.shutdown(socket.SHUT_RDWR)
