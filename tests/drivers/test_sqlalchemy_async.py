"""SQLAlchemy in asyncio, on psycopg and asyncpg: what the common suite cannot ask.

Cancellation is in test_async.py, and what does not depend on being awaited in test_sqlalchemy.py.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

import pgfence
from pgfence import errors
from tests import guarded
from tests.conformance.drivers import sqlalchemy_async_engine, sqlalchemy_asyncpg_engine
from tests.drivers.test_sqlalchemy import Invoice, counts, outlast
from tests.guarded import BATCH, DAY
from tests.registry import registry
from tests.support import Database, Keys

ADD = text("insert into invoices values (1, :day, 10)")
_DRIVERS = ("psycopg", "asyncpg")
_DAY = {"day": datetime.date.fromisoformat(DAY)}


@pytest.fixture
def served(database: Database, keys: Keys) -> Iterator[Database]:
    owner = database.connect("billing_owner")
    guarded.make_table(owner, "invoices", "plain")
    guarded.protect(owner, "invoices")
    with registry(database, keys):
        yield database


MakeEngine = Callable[..., AbstractAsyncContextManager[AsyncEngine]]


@pytest.fixture(
    params=[sqlalchemy_async_engine, sqlalchemy_asyncpg_engine], ids=lambda f: f.__name__
)
def engine(request: pytest.FixtureRequest, served: Database) -> MakeEngine:
    """Makes an engine of worker_a for the block."""

    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[AsyncEngine]:
        engine = request.param(served.dsn("worker_a"), **options)
        try:
            yield engine
            assert engine.sync_engine.pool.checkedout() == 0
        finally:
            await engine.dispose()

    return make


def test_work_gets_a_connection_of_the_engine_or_a_session_of_the_sessionmaker(
    engine: MakeEngine, served: Database
) -> None:
    class OurSession(AsyncSession):
        pass

    async def with_connection(tx: AsyncConnection) -> None:
        assert isinstance(tx, AsyncConnection)
        await tx.execute(ADD, _DAY)

    async def with_session(tx: AsyncSession) -> None:
        assert isinstance(tx, OurSession)
        tx.add(Invoice(id=2))

    async def main() -> None:
        async with engine() as made:
            async with (
                pgfence.connect_async(made) as fence,
                fence.hold(BATCH, operation="settle") as lease,
            ):
                await lease.apply(1, with_connection)
            async with (
                pgfence.connect_async(async_sessionmaker(made, class_=OurSession)) as fence,
                fence.hold(BATCH, operation="settle") as lease,
            ):
                await lease.apply(1, with_session)
                with pytest.raises(IntegrityError):
                    await lease.apply(2, with_session)
                assert lease.next_segment == 2

    asyncio.run(main())
    assert counts(served) == (2, 2)


async def commits(tx: AsyncSession) -> None:
    tx.add(Invoice(id=1))
    await tx.commit()


async def commits_a_connection(tx: AsyncConnection) -> None:
    await tx.execute(ADD, _DAY)
    await tx.commit()


async def rolls_back(tx: AsyncSession) -> None:
    tx.add(Invoice(id=1))
    await tx.flush()
    await tx.rollback()


async def swallows_a_failed_flush(tx: AsyncSession) -> None:
    tx.add(Invoice(id=1))
    await tx.flush()
    tx.expunge_all()
    tx.add(Invoice(id=1))
    with pytest.raises(IntegrityError):
        await tx.flush()


async def swallows_a_failed_statement(tx: AsyncConnection) -> None:
    await tx.execute(ADD, _DAY)
    with pytest.raises(DBAPIError, match="division by zero"):
        await tx.execute(text("select 1 / 0"))


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (commits, InvalidRequestError),
        (commits_a_connection, InvalidRequestError),
        (rolls_back, errors.PgfenceError),
        (swallows_a_failed_flush, errors.PgfenceError),
        (swallows_a_failed_statement, errors.PgfenceError),
    ],
    ids=lambda value: value.__name__,
)
def test_work_that_ends_or_undoes_the_transaction_is_no_segment(
    engine: MakeEngine, served: Database, work: Callable[[Any], Awaitable[None]],
    error: type[Exception],
) -> None:  # fmt: skip
    core = "Connection" in str(work.__annotations__)

    async def main() -> None:
        async with (
            engine() as made,
            pgfence.connect_async(made if core else async_sessionmaker(made)) as fence,
            fence.hold(BATCH, operation="settle") as lease,
        ):
            with pytest.raises(error, match="must not commit|undone"):
                await lease.apply(1, work)
            assert counts(served) == (0, 0)
            await lease.apply(1, lambda tx: tx.execute(ADD, _DAY))

    asyncio.run(main())
    assert counts(served) == (1, 1)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_r51_segments_have_the_isolation_level_of_the_engine(
    engine: MakeEngine, level: str
) -> None:
    async def work(tx: AsyncConnection) -> None:
        assert await tx.scalar(text("show transaction_isolation")) == level.lower()
        await tx.execute(ADD, _DAY)

    async def main() -> None:
        async with (
            engine(isolation_level=level) as made,
            pgfence.connect_async(made) as fence,
            fence.hold(BATCH, operation="settle") as lease,
        ):
            await lease.apply(1, work)

    asyncio.run(main())


def test_autocommit_is_refused_and_there_is_a_way_out(engine: MakeEngine, served: Database) -> None:
    async def nothing(tx: AsyncConnection) -> None:
        pass

    async def main() -> None:
        async with (
            engine(isolation_level="AUTOCOMMIT") as made,
            pgfence.connect_async(made) as fence,
            fence.hold(BATCH, operation="settle") as lease,
        ):
            with pytest.raises(errors.InvalidArgumentError, match="AUTOCOMMIT"):
                await lease.apply(1, nothing)
            async with AsyncSession(made) as session:
                with pytest.raises(errors.InvalidArgumentError, match="AUTOCOMMIT"):
                    await fence.apply(session, lease, 1, {})
            await lease.release()
            transactional = made.execution_options(isolation_level="READ COMMITTED")
            async with (
                pgfence.connect_async(transactional) as fence,
                fence.hold(BATCH, operation="settle") as lease,
            ):
                await lease.apply(1, lambda tx: tx.execute(ADD, _DAY))

    asyncio.run(main())
    assert counts(served) == (1, 1)


def test_r23_r24_a_caller_s_session_flushes_after_the_admission_and_nobody_commits_for_it(
    engine: MakeEngine, served: Database
) -> None:
    async def main() -> None:
        async with (
            engine() as made,
            pgfence.connect_async(served.dsn("worker_a")) as fence,
            fence.hold(BATCH, operation="settle") as lease,
        ):
            async with AsyncSession(made) as session, session.begin():
                pending = Invoice(id=1)
                session.add(pending)
                assert (await fence.apply(session, lease, 1, {})).verdict == "ACCEPTED"
                assert pending in session.new
            async with AsyncSession(made) as session:
                session.add(Invoice(id=2))
                with pytest.raises(DBAPIError, match="admitted"):
                    await session.scalars(select(Invoice))
            async with made.begin() as conn:
                assert (await fence.apply(conn, lease, 2, {})).verdict == "ACCEPTED"
            registered = async_scoped_session(async_sessionmaker(made), asyncio.current_task)
            assert (await fence.apply(registered, lease, 3, {})).verdict == "ACCEPTED"
            await registered.commit()
            await registered.remove()
            async with made.connect() as conn:
                assert (await fence.apply(conn, lease, 4, {})).verdict == "ACCEPTED"
            with pytest.raises(errors.InvalidArgumentError, match="apply takes"):
                await fence.apply("a connection", lease, 4, {})

    asyncio.run(main())
    assert counts(served) == (1, 3)


def test_r19_at_a_caller_s_commit_our_error_is_raised_on_request(
    engine: MakeEngine, served: Database
) -> None:
    async def main() -> None:
        async with (
            engine() as made,
            pgfence.connect_async(async_sessionmaker(made)) as fence,
            fence.hold(BATCH, operation="settle", ttl=4) as lease,
        ):
            with pytest.raises(errors.LeaseEndedError) as caught, pgfence.translated_errors():
                async with AsyncSession(made) as session, session.begin():
                    (await fence.apply(session, lease, 1, {})).require()
                    await session.run_sync(outlast)
            assert isinstance(caught.value.__cause__, DBAPIError)
            assert (caught.value.rule, caught.value.detail["resource"]) == ("R19", BATCH)
            assert "Acquire the resource again" in (caught.value.next_step or "")

    asyncio.run(main())
    assert counts(served) == (0, 0)


def test_r44_what_an_event_handler_raises_after_commit_is_unknown(
    engine: MakeEngine, served: Database
) -> None:
    def fails(session: Any) -> None:
        raise ValueError("the handler failed")

    async def add(tx: AsyncSession) -> None:
        tx.add(Invoice(id=1))

    async def never(tx: AsyncSession) -> None:
        pytest.fail("it stands")

    async def main() -> None:
        async with engine() as made:
            maker = async_sessionmaker(made)
            async with (
                pgfence.connect_async(maker) as fence,
                fence.hold(BATCH, operation="settle") as lease,
            ):

                async def at(name: str) -> None:
                    async def work(tx: AsyncSession) -> None:
                        event.listen(tx.sync_session, name, fails)
                        await add(tx)

                    await lease.apply(1, work)

                with pytest.raises(ValueError, match="the handler failed"):
                    await at("before_commit")
                with pytest.raises(errors.MutationUnknownError) as caught:
                    await at("after_commit")
                outcome = await fence.reconcile(caught.value)
                assert await lease.apply(1, never) == outcome.receipt

    asyncio.run(main())
    assert counts(served) == (1, 1)


def test_a_lease_takes_nothing_from_the_pool_but_for_a_segment(engine: MakeEngine) -> None:
    async def main() -> None:
        async with (
            engine(pool_size=1, max_overflow=0, pool_timeout=1) as made,
            pgfence.connect_async(made) as fence,
            made.connect(),
            fence.hold(BATCH, operation="settle") as lease,
        ):
            assert (await lease.position()).last_segment == 0

    asyncio.run(main())


def test_an_engine_that_will_not_do_says_why(engine: MakeEngine) -> None:
    async def main() -> None:
        async with engine() as made, made.connect() as conn:
            for source, why in (
                (create_engine("postgresql+psycopg://"), "AsyncEngine or an async_sessionmaker"),
                (create_async_engine("postgresql+psycopg://").sync_engine, "AsyncEngine or an"),
                (async_sessionmaker(), "bind"),
                (async_sessionmaker(conn), "bound to a Connection"),
            ):
                with pytest.raises(errors.InvalidArgumentError, match=why):
                    await pgfence.connect_async(source)  # type: ignore[arg-type]
            with pytest.raises(errors.InvalidArgumentError, match="not .*AsyncEngine"):
                pgfence.connect(made)  # type: ignore[call-overload]

    asyncio.run(main())


@pytest.mark.parametrize("name", _DRIVERS)
def test_a_server_that_does_not_answer_is_the_driver_s_error(name: str) -> None:
    async def main() -> None:
        await pgfence.connect_async(
            create_async_engine(f"postgresql+{name}://worker_a@127.0.0.1:1/billing")
        )

    with pytest.raises((psycopg.OperationalError, OSError), match="refused|Connect call failed"):
        asyncio.run(main())
