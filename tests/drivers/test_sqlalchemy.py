"""SQLAlchemy, synchronous: what the common suite cannot ask."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import conninfo
from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InvalidRequestError,
    ProgrammingError,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

import pgfence
from pgfence import errors
from tests import guarded
from tests.guarded import BATCH, DAY
from tests.registry import registry
from tests.support import PATIENCE, Database, Keys, wait_until
from tests.workers import end_lease

RECEIPTS = "select count(*) from pgfence.receipts"
INVOICES = "select count(*) from invoices"


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    batch_date: Mapped[datetime.date] = mapped_column(default=datetime.date.fromisoformat(DAY))
    amount: Mapped[int] = mapped_column(default=10)


@pytest.fixture
def served(database: Database, keys: Keys) -> Iterator[Database]:
    owner = database.connect("billing_owner")
    guarded.make_table(owner, "invoices", "plain")
    guarded.protect(owner, "invoices")
    with registry(database, keys):
        yield database


MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(served: Database) -> Iterator[MakeEngine]:
    """Engines of worker_a; disposed of at the end."""
    made = []

    def make(**options: Any) -> Engine:
        arguments = {"connect_args": conninfo.conninfo_to_dict(served.dsn("worker_a"))}
        made.append(create_engine("postgresql+psycopg://", **arguments, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    return make_engine()


@pytest.fixture
def fence(engine: Engine) -> Iterator[pgfence.Fence[Session]]:
    with pgfence.connect(sessionmaker(engine)) as fence:
        yield fence


def count(database: Database, query: str) -> int:
    row = guarded.run(database.connect(), query).fetchone()
    assert row is not None
    return int(row[0])


def counts(database: Database) -> tuple[int, int]:
    """How many invoices and receipts there are."""
    return count(database, INVOICES), count(database, RECEIPTS)


class OurSession(Session):
    """An application's own class."""


def test_work_gets_a_connection_of_the_engine_or_a_session_of_the_sessionmaker(
    engine: Engine, served: Database
) -> None:
    def with_connection(tx: Connection) -> None:
        assert tx.engine is engine
        tx.execute(text("insert into invoices values (1, :day, 10)"), {"day": DAY})

    def with_session(tx: OurSession) -> None:
        assert isinstance(tx, OurSession)
        assert not tx.expire_on_commit
        tx.add(Invoice(id=2))

    with (
        pgfence.connect(engine) as core,
        core.hold(BATCH, operation="settle") as lease,
    ):
        lease.apply(1, with_connection)
    with (
        pgfence.connect(sessionmaker(engine, class_=OurSession, expire_on_commit=False)) as orm,
        orm.hold(BATCH, operation="settle") as next_lease,
    ):
        next_lease.apply(1, with_session)
    assert counts(served) == (2, 2)


def test_r15_what_work_leaves_to_be_flushed_stands_with_the_receipt(
    fence: pgfence.Fence[Session], served: Database
) -> None:
    made = [Invoice(id=1), Invoice(id=2)]
    with fence.hold(BATCH, operation="settle") as lease:
        lease.apply(1, lambda session: session.add_all(made))
        assert counts(served) == (2, 1)
        # A flush that fails is an error of the work function's.
        with pytest.raises(IntegrityError):
            lease.apply(2, lambda session: session.add(Invoice(id=1)))
        assert lease.apply(2, lambda session: session.add(Invoice(id=3))).segment_seq == 2
    assert counts(served) == (3, 2)


def test_r23_a_flush_that_is_not_admitted_raises_our_error(fence: pgfence.Fence[Session]) -> None:
    other = Invoice(id=1, batch_date=datetime.date(2026, 7, 20))
    with (
        fence.hold(BATCH, operation="settle") as lease,
        pytest.raises(errors.NotAdmittedError) as caught,
    ):
        lease.apply(1, lambda session: session.add(other))
    assert isinstance(caught.value.__cause__, DBAPIError)


@pytest.mark.parametrize("options", [{}, {"twophase": True}], ids=["", "twophase"])
def test_work_may_not_commit(engine: Engine, served: Database, options: dict[str, Any]) -> None:
    def commits(session: Session) -> None:
        session.add(Invoice(id=1))
        session.commit()

    def goes_on(session: Session) -> None:
        with pytest.raises(InvalidRequestError, match="must not commit"):
            commits(session)

    with (
        pgfence.connect(sessionmaker(engine, **options)) as fence,
        fence.hold(BATCH, operation="settle") as lease,
    ):
        with pytest.raises(InvalidRequestError, match="must not commit"):
            lease.apply(1, commits)
        with pytest.raises(InvalidRequestError, match="must not commit"):
            lease.apply(1, goes_on)
        assert counts(served) == (0, 0)
        lease.apply(1, lambda session: session.add(Invoice(id=1)))
    assert counts(served) == (1, 1)
    assert count(served, "select count(*) from pg_prepared_xacts") == 0


def test_work_may_not_commit_a_connection_either(engine: Engine, served: Database) -> None:
    def commits(tx: Connection) -> None:
        tx.execute(text("insert into invoices values (1, :day, 10)"), {"day": DAY})
        tx.commit()

    with (
        pgfence.connect(engine) as fence,
        fence.hold(BATCH, operation="settle") as lease,
        pytest.raises(InvalidRequestError, match="must not commit"),
    ):
        lease.apply(1, commits)
    assert counts(served) == (0, 0)


def test_a_commit_in_sql_is_noticed(fence: pgfence.Fence[Session], served: Database) -> None:
    with fence.hold(BATCH, operation="settle") as lease:
        with pytest.raises(errors.MutationUnknownError):
            lease.apply(1, lambda session: session.execute(text("commit")))
        assert lease.apply(1, lambda session: pytest.fail("it stands already")).replayed
    assert counts(served) == (0, 1)


def rolls_back(session: Session) -> None:
    session.add(Invoice(id=1))
    session.flush()
    session.rollback()


def swallows(session: Session) -> None:
    session.add(Invoice(id=1))
    session.flush()
    session.expunge_all()
    session.add(Invoice(id=1))
    with pytest.raises(IntegrityError):
        session.flush()


@pytest.mark.parametrize("undoes", [rolls_back, swallows, Session.close])
def test_work_that_undoes_the_transaction_is_no_segment(
    fence: pgfence.Fence[Session], served: Database, undoes: Callable[[Session], object]
) -> None:
    with fence.hold(BATCH, operation="settle") as lease:
        with pytest.raises(errors.PgfenceError, match="undone"):
            lease.apply(1, undoes)
        assert counts(served) == (0, 0)
        assert lease.apply(1, lambda session: session.add(Invoice(id=1))).segment_seq == 1
    assert counts(served) == (1, 1)


@pytest.mark.parametrize("given_back", [False, True])
def test_r43_what_work_gave_back_to_the_pool_is_not_cut_when_the_lease_is_lost(
    fence: pgfence.Fence[Session], served: Database, given_back: bool
) -> None:
    """It is somebody else's by then."""
    uncut: list[bool] = []

    def work(session: Session) -> None:
        raw: Any = session.connection().connection.driver_connection
        if given_back:
            session.rollback()
        end_lease(served, lease.grant.lease)
        lease._registry_session.wake()
        assert lease.lost.wait(PATIENCE)
        lease._work_session.stop_work()
        try:
            raw.execute("select 1")
        except psycopg.OperationalError:
            uncut.append(False)
        else:
            uncut.append(True)
            raw.rollback()

    with (
        fence.hold(BATCH, operation="settle") as lease,
        pytest.raises(errors.PgfenceError),
    ):
        lease.apply(1, work)
    assert uncut == [given_back]
    with fence.hold(BATCH, operation="settle") as lease:
        lease.apply(1, lambda session: session.add(Invoice(id=1)))


def test_work_may_use_savepoints(fence: pgfence.Fence[Session], served: Database) -> None:
    def work(session: Session) -> None:
        for number in (1, 1, 2):
            try:
                with session.begin_nested():
                    session.add(Invoice(id=number))
            except IntegrityError:
                session.add(Invoice(id=10))
        session.begin_nested()  # left open

    with fence.hold(BATCH, operation="settle") as lease:
        lease.apply(1, work)
    assert counts(served) == (3, 1)


def outlast(session: Session) -> None:
    """Stay in a transaction until its lease of four seconds has ended, unseen by the server."""
    session.add(Invoice(id=2))
    session.flush()
    session.execute(text("set local idle_in_transaction_session_timeout = 0"))
    if session.scalar(text("select current_setting('transaction_timeout', true)")) is not None:
        session.execute(text("set local transaction_timeout = 0"))
    session.execute(text("select pg_sleep(4.2)"))


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_r51_segments_have_the_isolation_level_of_the_engine(
    make_engine: MakeEngine, served: Database, level: str
) -> None:
    def work(session: Session) -> None:
        assert session.scalar(text("show transaction_isolation")) == level.lower()
        session.add(Invoice(id=1))

    with (
        pgfence.connect(sessionmaker(make_engine(isolation_level=level))) as fence,
        fence.hold(BATCH, operation="settle") as lease,
    ):
        lease.apply(1, work)
    assert counts(served) == (1, 1)


def test_autocommit_is_refused_and_there_is_a_way_out(
    make_engine: MakeEngine, served: Database
) -> None:
    engine = make_engine(isolation_level="AUTOCOMMIT")
    add = text("insert into invoices values (1, :day, 10)")
    with (
        pgfence.connect(engine) as fence,
        fence.hold(BATCH, operation="settle") as lease,
        engine.connect() as conn,
        Session(engine) as session,
    ):
        with pytest.raises(errors.InvalidArgumentError, match="AUTOCOMMIT"):
            lease.apply(1, lambda tx: None)
        for caller in (conn, session):
            with pytest.raises(errors.InvalidArgumentError, match="AUTOCOMMIT"):
                fence.apply(caller, lease, 1, {})
    transactional = engine.execution_options(isolation_level="READ COMMITTED")
    with (
        pgfence.connect(transactional) as fence,
        fence.hold(BATCH, operation="settle") as lease,
    ):
        lease.apply(1, lambda tx: tx.execute(add, {"day": DAY}))
    assert counts(served) == (1, 1)


def test_r19_two_phases_make_one_segment(engine: Engine, served: Database) -> None:
    with (
        pgfence.connect(sessionmaker(engine, twophase=True)) as fence,
        fence.hold(BATCH, operation="settle", ttl=4) as lease,
    ):
        lease.apply(1, lambda session: session.add(Invoice(id=1)))
        with pytest.raises(errors.LeaseEndedError):
            lease.apply(2, outlast)
    assert counts(served) == (1, 1)
    assert count(served, "select count(*) from pg_prepared_xacts") == 0


def test_a_lease_takes_nothing_from_the_pool_but_for_a_segment(make_engine: MakeEngine) -> None:
    engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=1)
    with (
        pgfence.connect(engine) as fence,
        fence.hold(BATCH, operation="settle") as lease,
    ):
        lease.apply(1, lambda tx: None)
        with engine.connect():  # all there is
            assert lease.position().last_segment == 1
            lease.release()
            with fence.hold(BATCH, operation="settle") as again:
                assert again.state is pgfence.State.HELD


def test_our_connections_are_opened_as_the_engine_opens_its_own(
    make_engine: MakeEngine, served: Database
) -> None:
    engine = make_engine()

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, args: Any, parameters: dict[str, Any]) -> None:
        parameters["application_name"] = "settlement"

    with (
        pgfence.connect(engine) as fence,
        fence.hold(BATCH, operation="settle") as lease,
    ):
        lease.apply(1, lambda tx: None)
        names = served.connect().execute(
            "select distinct application_name from pg_stat_activity where usename = 'worker_a'"
        )
        assert names.fetchall() == [("settlement",)]


@pytest.mark.parametrize("pre_ping", [False, True])
def test_a_segment_begins_again_where_the_pool_had_a_dead_connection(
    make_engine: MakeEngine, served: Database, pre_ping: bool
) -> None:
    engine = make_engine(pool_pre_ping=pre_ping)
    with (
        pgfence.connect(sessionmaker(engine)) as fence,
        fence.hold(BATCH, operation="settle", ttl=60) as lease,
    ):
        lease.apply(1, lambda session: session.add(Invoice(id=1)))
        served.connect().execute(
            "select pg_terminate_backend(pid, 60000) from pg_stat_activity"
            " where usename = 'worker_a' and datname = current_database()"
        )
        lease.apply(2, lambda session: session.add(Invoice(id=2)))
    assert counts(served) == (2, 2)


@pytest.mark.parametrize("fails", [rolls_back, swallows, Session.commit])
def test_no_transaction_stays_open_in_a_pool_that_resets_nothing(
    make_engine: MakeEngine, served: Database, fails: Callable[[Session], object]
) -> None:
    engine = make_engine(pool_reset_on_return=None)
    with (
        pgfence.connect(sessionmaker(engine)) as fence,
        fence.hold(BATCH, operation="settle") as lease,
    ):
        with pytest.raises((errors.PgfenceError, InvalidRequestError)):
            lease.apply(1, fails)
        wait_until(lambda: not _open_transactions(served), "the transaction has ended")
        with pytest.raises(errors.SegmentGapError):
            lease.apply(5, lambda session: None, segment=5)
        wait_until(lambda: not _open_transactions(served), "the transaction has ended")


def _open_transactions(database: Database) -> int:
    """Also those of a connection that is closed already, which its server has yet to notice."""
    return count(
        database,
        "select count(*) from pg_stat_activity where usename = 'worker_a'"
        " and datname = current_database() and xact_start is not null",
    )


def fails(session: Session) -> None:
    raise ValueError("the handler failed")


def fails_in_sql(session: Session) -> None:
    with Session(session.get_bind()) as another:
        another.execute(text("select 1 / 0"))


@pytest.mark.parametrize("handler", [fails, fails_in_sql])
def test_r44_what_an_event_handler_raises_before_commit_prevents_it_and_after_it_is_unknown(
    engine: Engine, served: Database, handler: Callable[[Session], None]
) -> None:
    maker = sessionmaker(engine)
    with pgfence.connect(maker) as fence, fence.hold(BATCH, operation="settle") as lease:
        event.listen(maker, "before_commit", handler)
        with pytest.raises((ValueError, DBAPIError), match="handler failed|division by zero"):
            lease.apply(1, lambda session: session.add(Invoice(id=1)))
        assert counts(served) == (0, 0)
        event.remove(maker, "before_commit", handler)
        event.listen(maker, "after_commit", handler)
        with pytest.raises(errors.MutationUnknownError) as caught:
            lease.apply(2, lambda session: session.add(Invoice(id=2)))
        assert counts(served) == (1, 1)
        event.remove(maker, "after_commit", handler)
        outcome = fence.reconcile(caught.value)
        assert lease.apply(2, lambda session: pytest.fail("it stands")) == outcome.receipt


def test_an_engine_that_will_not_do_says_why(engine: Engine) -> None:
    sqlite = create_engine("sqlite://")
    with engine.connect() as conn:
        for source, why in (
            (sqlite, "postgresql.psycopg, not of sqlite"),
            (sessionmaker(sqlite), "postgresql.psycopg, not of sqlite"),
            (sessionmaker(), "bind"),
            (sessionmaker(conn), "bound to a Connection"),
            (conn, "takes a DSN, an Engine or a sessionmaker"),
        ):
            with pytest.raises(errors.InvalidArgumentError, match=why):
                pgfence.connect(source)  # type: ignore[arg-type]


def test_a_server_that_does_not_answer_is_psycopg_s_error() -> None:
    engine = create_engine("postgresql+psycopg://worker_a@127.0.0.1:1/billing")
    with pytest.raises(psycopg.OperationalError):
        pgfence.connect(engine)


def test_r24_a_caller_may_come_with_a_connection_a_session_or_a_scoped_session(
    fence: pgfence.Fence[Session], engine: Engine, served: Database
) -> None:
    with fence.hold(BATCH, operation="settle") as lease:
        with engine.begin() as conn:
            assert fence.apply(conn, lease, 1, {}).verdict == "ACCEPTED"
        with Session(engine) as session, session.begin():
            assert fence.apply(session, lease, 2, {}).verdict == "ACCEPTED"
        registered = scoped_session(sessionmaker(engine))
        assert fence.apply(registered, lease, 3, {}).verdict == "ACCEPTED"
        registered.commit()
        registered.remove()
        with engine.connect() as conn:  # and is not committed for them
            assert fence.apply(conn, lease.token, 4, {}).verdict == "ACCEPTED"
    assert counts(served) == (0, 3)


def test_r23_a_session_flushes_after_the_admission_and_a_query_before_it_is_refused(
    fence: pgfence.Fence[Session], engine: Engine, served: Database
) -> None:
    with fence.hold(BATCH, operation="settle") as lease:
        with Session(engine) as session, session.begin():
            pending = Invoice(id=1)
            session.add(pending)
            assert fence.apply(session, lease, 1, {}).verdict == "ACCEPTED"
            assert pending in session.new
        assert counts(served) == (1, 1)
        with Session(engine) as session:
            session.add(Invoice(id=2))
            with pytest.raises(ProgrammingError, match="admitted"):
                session.scalars(select(Invoice)).all()
        with Session(engine) as session, session.begin():
            session.add(Invoice(id=2))
            with session.no_autoflush:
                assert len(session.scalars(select(Invoice)).all()) == 1
            assert fence.apply(session, lease, 2, {}).verdict == "ACCEPTED"
    assert counts(served) == (2, 2)


def test_r24_an_admission_goes_with_its_savepoint(
    fence: pgfence.Fence[Session], engine: Engine, served: Database
) -> None:
    with fence.hold(BATCH, operation="settle") as lease, Session(engine) as session:
        with session.begin_nested() as savepoint:
            assert fence.apply(session, lease, 1, {}).verdict == "ACCEPTED"
            savepoint.rollback()
        session.add(Invoice(id=1))
        with pytest.raises(ProgrammingError, match="admitted"):
            session.commit()
    assert counts(served) == (0, 0)


def test_a_caller_s_session_and_connection_are_as_they_were(
    fence: pgfence.Fence[Session], make_engine: MakeEngine
) -> None:
    engine = make_engine(isolation_level="REPEATABLE READ")
    seen: list[str] = []
    event.listen(
        engine, "before_cursor_execute", lambda conn, cur, statement, *_: seen.append(statement)
    )
    with fence.hold(BATCH, operation="settle") as lease:
        with Session(engine) as session:
            settings = text("select name, setting from pg_settings where source = 'session'")
            before = session.execute(settings).all()
            assert fence.apply(session, lease, 1, {}).verdict == "ACCEPTED"
            assert session.scalar(text("show transaction_isolation")) == "repeatable read"
            session.commit()
            assert session.execute(settings).all() == before
        with engine.connect().execution_options(stream_results=True) as conn:
            assert fence.apply(conn, lease, 2, {}).verdict == "ACCEPTED"
            assert conn.get_execution_options()["stream_results"]
            conn.commit()
    assert sum("fenced_apply" in statement for statement in seen) == 2, "the application sees them"


@pytest.mark.parametrize("twophase", [False, True])
def test_r19_at_a_caller_s_commit_our_error_is_in_the_driver_s_and_raised_on_request(
    fence: pgfence.Fence[Session], engine: Engine, served: Database, twophase: bool
) -> None:
    with (
        fence.hold(BATCH, operation="settle", ttl=4) as lease,
        pytest.raises(errors.LeaseEndedError) as caught,
        pgfence.translated_errors(),
        Session(engine, twophase=twophase) as session,
        session.begin(),
    ):
        fence.apply(session, lease, 1, {}).require()
        outlast(session)
    assert isinstance(caught.value.__cause__, DBAPIError)
    assert caught.value.rule == "R19"
    assert isinstance(errors.from_driver(caught.value.__cause__), errors.LeaseEndedError)
    assert counts(served) == (0, 0)


def test_what_is_no_error_of_ours_is_raised_as_it_is(engine: Engine) -> None:
    with (
        pytest.raises(ProgrammingError, match="no_such_table"),
        pgfence.translated_errors(),
        engine.connect() as conn,
    ):
        conn.execute(text("select from no_such_table"))
    with pytest.raises(ValueError, match="other"), pgfence.translated_errors():
        raise ValueError("other")


def test_what_is_no_connection_is_refused(fence: pgfence.Fence[Session]) -> None:
    with fence.hold(BATCH, operation="settle") as lease:
        with (
            create_engine("sqlite://").connect() as conn,
            pytest.raises(errors.InvalidArgumentError, match="sqlite"),
        ):
            fence.apply(conn, lease, 1, {})
        with pytest.raises(errors.InvalidArgumentError, match="takes a psycopg connection"):
            fence.apply("a connection", lease, 1, {})  # type: ignore[arg-type]
