"""SQLAlchemy 2: a caller's Connection or Session, or segments that an Engine begins.

In a caller's transaction the calls are statements of its Connection: events, logging and tracing
see them, the dialect is the caller's, and a Session flushes nothing because of them.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias, TypeVar

import psycopg
from sqlalchemy import Connection, Dialect, Engine, TextClause, event, text
from sqlalchemy.exc import (
    DBAPIError,
    InvalidRequestError,
    SQLAlchemyError,
    UnboundExecutionError,
)
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import scoped_session, sessionmaker

from pgfence import errors
from pgfence.client.protocol import (
    Batch,
    Call,
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
from pgfence.drivers import psycopg as driver

#: What a caller may have a transaction open on.
Caller: TypeAlias = Connection | OrmSession | scoped_session[Any]
#: What an application begins its transactions with; `work` gets a Connection, or a Session.
Source: TypeAlias = Engine | sessionmaker[Any]
_T = TypeVar("_T")
#: A prepared statement does not exist, or exists already.
_PREPARED_ELSEWHERE = frozenset({"26000", "42P05"})


class Session(driver.Session):
    """Segments run in transactions that the application's Engine or sessionmaker begins.

    All else goes over a connection of ours, opened as the Engine opens those of its pool, and none
    of them: a renewal must not wait until a segment gives one back. Not for two threads at once.
    """

    def __init__(self, source: Source, engine: Engine) -> None:
        super().__init__("", prepare_threshold=None)
        self._source = source
        #: Connects like the Engine's; keeps nothing.
        self._pool = engine.pool.recreate()
        self._segment: _Transaction | None = None

    def run(self, steps: Steps[_T], work: Callable[[Any], object] | None = None) -> _T:
        try:
            return super().run(steps, work)
        finally:
            self._roll_back()

    def stop_work(self) -> None:
        """As the driver does, but for a connection that `work` has given back to the pool."""
        segment = self._segment
        if segment is None or not segment.connection.closed:
            super().stop_work()

    def _carry_out(self, step: Step) -> object:
        try:
            match step:
                case Batch(begin=True):
                    return self._begin(step)
                case Work():
                    return self._call_work()
                case Commit():
                    self._commit()
                case Rollback():
                    self._roll_back()
                case Reopen():
                    # The next step opens what it needs: the one kind of connection or the other.
                    self.close()
                case _:
                    return super()._carry_out(step)
        except DBAPIError as error:
            report(error)
        return None

    def _new(self, timeout: int) -> driver.Connection:
        """As the Engine connects: its URL, arguments and events, and its time limit."""
        try:
            pooled = self._pool.connect()
        except psycopg.Error:
            raise
        except Exception as error:  # whatever an event of the application's raises
            raise Failed(str(error), lost=True) from error
        own = pooled.driver_connection
        assert isinstance(own, psycopg.Connection)  # noqa: S101 - sessions() has seen to it
        pooled.detach()
        own.autocommit = True
        return own

    def _begin(self, batch: Batch) -> list[list[Row]]:
        try:
            self._segment = segment = _Transaction(self._source)
        except DBAPIError as error:
            report(error, lost=True)
        with (
            self._stoppable(segment.raw)
            if batch.within is None
            else driver.time_limit(segment.raw, batch.within)
        ):
            return _run(segment.connection, batch)

    def _call_work(self) -> Left:
        segment, work = self._segment, self._work
        assert segment is not None  # noqa: S101 - a Batch came before
        assert work is not None  # noqa: S101 - run() was called with one
        with self._stoppable(segment.raw):
            work(segment.given)
            return segment.left()

    def _commit(self) -> None:
        segment, self._segment = self._segment, None
        assert segment is not None  # noqa: S101 - a Batch came before
        segment.commit()

    def _roll_back(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.roll_back()


class Guarded:
    """A transaction of the application's that only we commit, whether it is awaited or not."""

    def __init__(self, given: Connection | OrmSession, connection: Connection) -> None:
        self._given = given
        self._root: Any = given.get_transaction()
        self._may_commit = self._sent = False
        self._refusal: InvalidRequestError | None = None
        for name in ("commit", "prepare_twophase"):
            event.listen(connection, name, self._on_commit)

    def _on_commit(self, connection: Connection, *_: object) -> None:
        """SQLAlchemy is about to send COMMIT, or PREPARE TRANSACTION."""
        if not self._may_commit:
            # Whatever SQLAlchemy takes the transaction for now, the server undoes it.
            connection.invalidate()
            self._refusal = InvalidRequestError(
                "the work function must not commit: its segment is committed together with its "
                "receipt. The transaction was undone"
            )
            raise self._refusal
        self._sent = True

    def is_undone(self) -> bool:
        """Whether the work function rolled back, or a flush that failed did.

        Raises what it was told when it tried to commit.
        """
        if self._refusal is not None:
            raise self._refusal
        has_ended = self._given.get_transaction() is not self._root
        return has_ended or not self._root.is_active

    @contextmanager
    def committing(self) -> Iterator[None]:
        """The block commits."""
        self._may_commit = True
        try:
            yield
        except Exception as error:
            if isinstance(error, DBAPIError) and not (self._sent and error.statement):
                raise  # what the last flush or COMMIT was answered
            # An event handler of the application's. Before COMMIT it has prevented that; after it
            # nobody knows.
            raise Failed(str(error), lost=self._sent) from error


class _Transaction(Guarded):
    def __init__(self, source: Source) -> None:
        self._context = _begin(source)
        #: What the work function gets, and its Connection.
        self.given, self.connection = self._context.__enter__()
        self.raw: Any = self.connection.connection.driver_connection
        super().__init__(self.given, self.connection)

    def left(self) -> Left:
        """What the work function left, after what it left to be flushed."""
        if self.is_undone():
            return Left.ABORTED
        if self.raw.closed:
            raise lost_before_commit()
        if isinstance(self.given, OrmSession):
            self.given.flush()
        return driver.LEFT[self.raw.pgconn.transaction_status]

    def commit(self) -> None:
        with self.committing():
            self._context.__exit__(None, None, None)

    def roll_back(self) -> None:
        with suppress(SQLAlchemyError):
            self._context.__exit__(RollBack, RollBack(), None)


def lost_before_commit() -> Failed:
    """The report that a connection was lost while the work function ran, and did not say so."""
    failed = Failed("the connection was lost before COMMIT", lost=True)
    failed.__cause__ = psycopg.OperationalError(failed.message)
    return failed


class RollBack(Exception):  # noqa: N818 - leaves a block
    pass


@contextmanager
def _begin(source: Source) -> Iterator[tuple[Connection | OrmSession, Connection]]:
    """Begin a transaction as the application does; commits, or rolls back on an exception."""
    if isinstance(source, Engine):
        with source.connect() as connection, connection.begin():
            refuse_autocommit(connection)
            yield connection, connection
    else:
        with source() as session, session.begin():
            connection = session.connection()
            refuse_autocommit(connection)
            yield session, connection


def sessions(source: Source) -> Callable[[], Session]:
    """What makes sessions on an Engine or sessionmaker.

    Raises `InvalidArgumentError` if it is neither, or none that we can use.
    """
    if isinstance(source, Engine):
        bind: Engine | Connection = source
    elif isinstance(source, sessionmaker):
        with source() as session:
            bind = bind_of(session)
    else:
        raise errors.InvalidArgumentError(
            f"connect takes a DSN, an Engine or a sessionmaker, not {source!r}"
        )
    engine = engine_for(bind, "postgresql+psycopg")
    return lambda: Session(source, engine)


def bind_of(session: OrmSession) -> Engine | Connection:
    """What a Session's transactions begin on by default."""
    try:
        return session.get_bind()
    except UnboundExecutionError as error:
        raise errors.InvalidArgumentError(str(error)) from error


def engine_for(bind: Engine | Connection, *drivers: str) -> Engine:
    """An Engine that a lease can use."""
    if not isinstance(bind, Engine):
        raise errors.InvalidArgumentError(
            "the sessionmaker is bound to a Connection, and a lease needs connections of its own"
        )
    if f"{bind.dialect.name}+{bind.dialect.driver}" not in drivers:
        raise errors.InvalidArgumentError(
            f"connecting takes an Engine of {' or '.join(drivers)}, not of {bind.url.drivername}: "
            "connect with a DSN, and call apply in transactions of that Engine"
        )
    return bind


def run_within(caller: Caller, steps: Steps[_T]) -> _T:
    """Drive `steps`, which are calls, in the transaction of a Connection or Session.

    Raises `InvalidArgumentError` in AUTOCOMMIT, and for what is no PostgreSQL.
    """
    if isinstance(caller, Connection):
        connection = caller
    elif isinstance(caller, OrmSession | scoped_session):
        connection = caller.connection()
    else:
        raise errors.InvalidArgumentError(
            "apply takes a psycopg connection or a Connection, Session or scoped_session of "
            f"SQLAlchemy, not {caller!r}"
        )
    refuse_others(connection.dialect)
    refuse_autocommit(connection)

    def perform(step: Step) -> object:
        assert isinstance(step, Batch)  # noqa: S101 - nothing else is the driver's to do here
        try:
            return _run(connection, step)
        except DBAPIError as error:
            report(error)

    return driver.run(steps, perform)


def refuse_others(dialect: Dialect) -> None:
    """Raise `InvalidArgumentError` for another database."""
    if dialect.name != "postgresql":
        raise errors.InvalidArgumentError(f"this is {dialect.name}, not PostgreSQL")


def refuse_autocommit(connection: Connection) -> None:
    """Raise `InvalidArgumentError` where each statement is a transaction of its own."""
    dbapi_connection: Any = connection.connection.dbapi_connection
    if dbapi_connection.autocommit:
        raise errors.InvalidArgumentError(
            "the connection is in AUTOCOMMIT: an admission would end with the call. "
            'execution_options(isolation_level="READ COMMITTED") makes an Engine or a Connection '
            "that is not"
        )


def _run(connection: Connection, batch: Batch) -> list[list[Row]]:
    return [
        list(connection.execute(statement(call.sql), parameters(call)).all())
        for call in batch.calls
    ]


@lru_cache
def statement(sql: str) -> TextClause:
    """The one text of every driver, with SQLAlchemy's placeholders."""
    return text(re.sub(r"\$(\d+)", r":p\1", sql))


def parameters(call: Call) -> dict[str, object]:
    return {f"p{number}": value for number, value in enumerate(call.parameters, 1)}


def report(error: DBAPIError, *, lost: bool = False) -> NoReturn:
    """Turn an error of SQLAlchemy's into the protocol's report."""
    if errors.said_by(error).sqlstate in _PREPARED_ELSEWHERE:
        error.add_note(
            "Behind a pooler in transaction mode an Engine must not prepare statements: "
            'create_engine(..., connect_args={"prepare_threshold": None}) with psycopg; '
            "docs/drivers.md says what asyncpg needs."
        )
    raise Failed.of(error, lost=lost or error.connection_invalidated) from error
