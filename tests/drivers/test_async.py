"""What is particular to tasks and event loops: the common suite cannot ask it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, LiteralString, TypeVar

import asyncpg
import psycopg
import pytest
from psycopg import conninfo
from psycopg.rows import dict_row
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession as OrmSession
from sqlalchemy.ext.asyncio import async_sessionmaker

import pgfence
from pgfence import State, errors
from pgfence.client import protocol
from pgfence.drivers import asyncpg as asyncpg_driver
from pgfence.drivers import psycopg_async
from pgfence.drivers.async_session import AsyncSession
from tests.conformance.drivers import sqlalchemy_async_engine, sqlalchemy_asyncpg_engine
from tests.proxy import proxy_to
from tests.registry import registry
from tests.support import PATIENCE, Database, Keys, set_for_roles, wait_until
from tests.workers import end_lease

RESOURCE = "invoice-batch/2026-07-19"
WAITING = "select count(*) from pgfence_registry.requests where state = 'WAITING'"
HELD = "select count(*) from pgfence_registry.grants where state = 'HELD'"
RECEIPTS = "select count(*) from pgfence.receipts"
IN_TRANSACTION = (
    "select count(*) from pg_stat_activity where usename = 'worker_a' and xact_start is not null"
)
SESSIONS: dict[str, type[Any]] = {
    "psycopg": psycopg_async.Session,
    "asyncpg": asyncpg_driver.Session,
}
_T = TypeVar("_T")


@pytest.fixture(params=["psycopg", "asyncpg"])
def driver(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def served(database: Database, keys: Keys) -> Iterator[Database]:
    """A guarded table that counts how often each page was applied, and a registry that signs."""
    owner = database.connect("billing_owner")
    owner.execute("create table pages (batch date not null, page int primary key, times int)")
    owner.execute("grant select, insert, update on pages to worker_a")
    owner.execute("select pgfence.protect('pages', 'invoice-batch/{batch}')")
    with registry(database, keys):
        yield database


@pytest.fixture
def plain(driver: Any, served: Database) -> Callable[[], Any]:
    """Connects as worker_a by a DSN."""
    return lambda: pgfence.connect_async(served.dsn("worker_a"), driver=driver)


@pytest.fixture(params=["psycopg", "asyncpg", "sqlalchemy psycopg", "sqlalchemy asyncpg"])
def fence(request: pytest.FixtureRequest, served: Database) -> Callable[[], Any]:
    """Connects as worker_a, by a DSN or an Engine."""
    dsn = served.dsn("worker_a")
    if not request.param.startswith("sqlalchemy"):
        return lambda: pgfence.connect_async(dsn, driver=request.param)

    @asynccontextmanager
    async def connect() -> AsyncIterator[pgfence.AsyncFence]:
        asyncpg = request.param.endswith("asyncpg")
        engine = (sqlalchemy_asyncpg_engine if asyncpg else sqlalchemy_async_engine)(dsn)
        async with pgfence.connect_async(async_sessionmaker(engine)) as fence:
            yield fence
        assert engine.sync_engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        await engine.dispose()
        # A connection that was cancelled while it was made is left to the garbage collector, and a
        # server drops no database while a session of it waits for a password.
        gc.collect()

    return connect


def one_step(step: protocol.Step) -> protocol.Steps[None]:
    yield step


def count(database: Database, query: LiteralString) -> int:
    row = database.watcher.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def settled_down(database: Database) -> None:
    """Nobody waits, nobody holds, and no transaction of worker A is open."""
    for query in (WAITING, HELD, IN_TRANSACTION):
        wait_until(lambda query=query: count(database, query) == 0, query)  # type: ignore[misc]


async def execute(tx: Any, query: str, *parameters: object) -> Any:
    """Run a statement on whatever connection it is."""
    if isinstance(tx, OrmSession):
        named = {f"p{number}": value for number, value in enumerate(parameters, 1)}
        return (await tx.execute(text(re.sub(r"\$(\d+)", r":p\1", query)), named)).all()
    if isinstance(tx, psycopg.AsyncConnection):
        return await (await psycopg.AsyncRawCursor(tx).execute(query, parameters)).fetchall()
    return [tuple(row) for row in await tx.fetch(query, *parameters)]


def write(page: int) -> Callable[[Any], Awaitable[None]]:
    async def work(tx: Any) -> None:
        await execute(
            tx,
            "insert into pages values ('2026-07-19', $1, 1)"
            " on conflict (page) do update set times = pages.times + 1 returning page",
            page,
        )

    return work


async def nothing(tx: Any) -> None:
    pass


class Cancelled(Generic[_T]):
    """Awaits a coroutine, whose task is cancelled where it waits for the n-th time.

    again: and wherever it waits afterwards, as anyio cancels.
    """

    def __init__(self, doing: Coroutine[Any, Any, _T], at: int, *, again: bool = False) -> None:
        self._doing = doing
        self._at = at
        self._again = again
        self.happened = False

    def __await__(self) -> Generator[Any, Any, _T]:
        inner = self._doing.__await__()
        resume: Callable[[Any], Any] = inner.send
        value: Any = None
        for number in itertools.count():
            try:
                awaited = resume(value)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            if number == self._at or (number > self._at and self._again):
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                self.happened = True
            try:
                value = yield awaited
                resume = inner.send
            except BaseException as error:
                value, resume = error, inner.throw
        raise AssertionError("unreachable")


async def cancelled_at(doing: Coroutine[Any, Any, object], at: int, *, again: bool = False) -> bool:
    """Whether it was cancelled, rather than done before it had waited so often."""
    attempt = Cancelled(doing, at, again=again)

    async def run() -> None:
        await attempt

    task = asyncio.create_task(run())
    await asyncio.wait({task})
    if attempt.happened:
        # What was begun goes on in the background.
        with suppress(asyncio.CancelledError):
            task.result()
    else:
        task.result()
    return attempt.happened


@pytest.mark.parametrize("again", [False, True], ids=["once", "again and again"])
@pytest.mark.usefixtures("enough_time")
def test_r36_a_waiter_that_is_cancelled_wherever_it_waits_leaves_the_queue(
    fence: Callable[[], Any], served: Database, again: bool
) -> None:
    async def main() -> int:
        async with fence() as waiter:

            async def wait() -> None:
                with suppress(pgfence.AcquireTimeoutError):
                    async with waiter.hold(RESOURCE, operation="settle", timeout=0.05):
                        pytest.fail("held twice")

            for at in itertools.count():
                if not await cancelled_at(wait(), at, again=again):
                    return at
                if not again:  # otherwise it leaves in the background
                    assert count(served, WAITING) == 0, f"cancelled at {at}"
        raise AssertionError("unreachable")

    with (
        pgfence.connect(served.dsn("worker_b")) as other,
        other.hold(RESOURCE, operation="settle", ttl=600),
    ):
        assert asyncio.run(main()) > 1
        wait_until(lambda: count(served, WAITING) == 0, "it has left")
    settled_down(served)


@pytest.mark.parametrize("again", [False, True], ids=["once", "again and again"])
@pytest.mark.usefixtures("enough_time")
def test_r36_an_owner_that_is_cancelled_wherever_it_waits_gives_the_lease_back(
    fence: Callable[[], Any], served: Database, again: bool
) -> None:
    async def main() -> int:
        async with fence() as owner:

            async def own() -> None:
                async with owner.hold(RESOURCE, operation="settle", ttl=600) as lease:
                    await lease.advance()

            for at in itertools.count():
                if not await cancelled_at(own(), at, again=again):
                    return at
                await eventually(lambda: count(served, HELD) == 0)
        raise AssertionError("unreachable")

    assert asyncio.run(main()) > 1
    settled_down(served)


@pytest.mark.usefixtures("enough_time")
def test_r36_an_owner_that_is_cancelled_at_any_moment_gives_the_lease_back(
    fence: Callable[[], Any], served: Database
) -> None:
    async def main() -> None:
        async with fence() as owner:

            async def own() -> None:
                async with owner.hold(RESOURCE, operation="settle", ttl=600) as lease:
                    await lease.apply("page", nothing)

            for milliseconds in range(0, 30, 2):
                with suppress(TimeoutError):
                    async with asyncio.timeout(milliseconds / 1000):
                        await own()
                # Cancelled while it gives the lease back, it does not wait for that.
                await eventually(lambda: count(served, HELD) + count(served, WAITING) == 0)

    asyncio.run(main())
    settled_down(served)


def test_r36_a_release_that_is_cancelled_while_a_segment_runs_is_done_after_it(
    plain: Callable[[], Any], served: Database
) -> None:
    """And one that waits as well does nothing then."""

    async def main() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def work(tx: Any) -> None:
            begun.set()
            await go_on.wait()

        async with plain() as owner:
            held: list[pgfence.AsyncLease] = []
            applying: list[asyncio.Task[Any]] = []

            async def own() -> None:
                async with owner.hold(RESOURCE, operation="settle", ttl=600) as lease:
                    held.append(lease)
                    applying.append(asyncio.create_task(lease.apply("page", work)))
                    await begun.wait()

            owning = asyncio.create_task(own())
            await begun.wait()
            (lease,) = held
            await eventually(lambda: waiting(lease) == 1)
            owning.cancel()
            await asyncio.wait({owning})
            assert owning.cancelled()
            again = asyncio.create_task(lease.release())
            await eventually(lambda: waiting(lease) == 2)
            assert count(served, HELD) == 1
            go_on.set()
            assert (await applying[0]).segment_seq == 1
            await again
            assert lease.state is State.RELEASED
            await eventually(lambda: count(served, HELD) == 0)

    def waiting(lease: pgfence.AsyncLease) -> int:
        return len(lease._applying._waiters or ())

    asyncio.run(main())
    settled_down(served)


async def eventually(condition: Callable[[], bool]) -> None:
    """`wait_until`, while the loop goes on."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


def test_r44_a_segment_that_is_cancelled_wherever_it_waits_is_applied_once_in_the_end(
    fence: Callable[[], Any], served: Database
) -> None:
    done: set[int] = set()
    unknown = 0

    async def main() -> int:
        nonlocal unknown
        async with fence() as owner, owner.hold(RESOURCE, operation="settle", ttl=600) as lease:

            async def work(tx: Any) -> None:
                await write(page)(tx)
                done.add(page)

            at = 0
            for page in range(1, 500):
                if not await cancelled_at(lease.apply(page, work), at):
                    if unknown:
                        return page
                    # How often it waits before COMMIT is not always the same: that was passed over.
                    at = 0
                    continue
                at += 1
                try:
                    await lease.apply("nothing", nothing, segment=page + 1)
                except errors.SegmentGapError:
                    assert count(served, IN_TRANSACTION) == 0
                except errors.MutationUnknownError as error:
                    assert error.segment_seq == page
                    assert page in done, "only from COMMIT on it is unknown"
                    unknown += 1
                receipt = await lease.apply(page, write(page))
                assert receipt.segment_seq == page
        raise AssertionError("no COMMIT was cancelled, or each was known")

    pages = asyncio.run(main())
    assert pages > 3
    assert count(served, RECEIPTS) == pages
    assert count(served, "select count(*) from pages where times = 1") == pages
    settled_down(served)


def test_r44_a_commit_on_its_way_is_waited_for_and_not_cancelled(
    fence: Callable[[], Any], served: Database
) -> None:
    """Cancelled behind synchronous replication, it would stand on the primary alone."""
    owner = served.connect("billing_owner")
    owner.execute(
        "create function public.slow() returns trigger language plpgsql as"
        " 'begin perform pg_advisory_xact_lock(1); return null; end';"
        " create constraint trigger slow after insert on pages deferrable initially deferred"
        " for each row execute function public.slow();"
        " select pg_advisory_lock(1)"
    )
    committing = (
        "select count(*) from pg_stat_activity where query ilike 'commit%' and state = 'active'"
    )

    async def main() -> None:
        async with fence() as worker, worker.hold(RESOURCE, operation="settle", ttl=600) as lease:
            task = asyncio.create_task(lease.apply("page", write(1)))
            await eventually(lambda: count(served, committing) == 1)
            task.cancel()
            await asyncio.sleep(0)  # it hears of it
            assert count(served, committing) == 1
            owner.execute("select pg_advisory_unlock(1)")
            with pytest.raises(asyncio.CancelledError):
                await task
            assert count(served, RECEIPTS) == 1
            with pytest.raises(errors.MutationUnknownError):
                await lease.apply("another", nothing)
            assert (await lease.apply("page", nothing)).replayed

    asyncio.run(main())


def test_a_session_is_used_again_only_after_what_was_cancelled_on_it_has_ended(
    fence: Callable[[], Any], served: Database
) -> None:
    """Cancelled again and again, `apply` returns before its transaction is undone."""

    async def main() -> None:
        async with fence() as owner, owner.hold(RESOURCE, operation="settle", ttl=600) as lease:
            for page in range(1, 40):
                once = lease.apply(page, write(page), segment=page)
                await cancelled_at(once, page % 13, again=True)
                assert (await lease.apply(page, write(page), segment=page)).segment_seq == page

    asyncio.run(main())
    assert count(served, RECEIPTS) == 39
    assert count(served, "select count(*) from pages where times = 1") == 39


def test_r46_segments_of_several_tasks_are_applied_one_after_the_other(
    fence: Callable[[], Any], served: Database
) -> None:
    async def main() -> list[int]:
        async with fence() as owner, owner.hold(RESOURCE, operation="settle") as lease:
            receipts = await asyncio.gather(*(lease.apply(p, write(p)) for p in range(8)))
            return sorted(receipt.segment_seq for receipt in receipts)

    assert asyncio.run(main()) == list(range(1, 9))


def test_neither_work_nor_a_task_of_it_can_use_its_own_lease(fence: Callable[[], Any]) -> None:
    """It would wait for itself. A task that goes on when the work is done may."""

    async def main() -> None:
        async with fence() as owner, owner.hold(RESOURCE, operation="settle") as lease:
            later: list[asyncio.Task[Any]] = []
            done = asyncio.Event()

            async def nested(tx: Any) -> None:
                await lease.position()

            async def in_a_task(tx: Any) -> None:
                await asyncio.gather(lease.position())

            async def goes_on() -> Any:
                await done.wait()
                return await lease.position()

            async def starts(tx: Any) -> None:
                later.append(asyncio.create_task(goes_on()))

            for work in (nested, in_a_task):
                with pytest.raises(errors.InvalidArgumentError, match="its own lease"):
                    await lease.apply("page", work)
            await lease.apply("page", starts)
            done.set()
            assert (await later[0]).last_segment == 1

    asyncio.run(main())


def test_r43_a_loop_that_is_blocked_does_not_renew_and_the_late_renewal_prolongs_nothing(
    fence: Callable[[], Any], served: Database
) -> None:
    ends = "select extract(epoch from lease_ends_at) * 1000000 from pgfence_registry.grants"

    async def main() -> None:
        async with fence() as owner, owner.hold(RESOURCE, operation="settle", ttl=3) as lease:
            before = count(served, ends)
            time.sleep(3)
            assert lease.state is State.EXPIRED
            assert lease.lost.is_set()
            await asyncio.wait({lease._keeper}, timeout=PATIENCE)
            with pytest.raises(errors.NotHeldError):
                await lease.apply("page", nothing)
            with pytest.raises(errors.NotHeldError):
                await lease.wait_held()
            assert count(served, ends) == before

    asyncio.run(main())


def test_r43_work_that_waits_for_something_else_is_cancelled_when_the_lease_is_lost(
    fence: Callable[[], Any], served: Database
) -> None:
    async def main() -> None:
        async with fence() as owner, owner.hold(RESOURCE, operation="settle", ttl=3) as lease:

            async def dawdles(tx: Any) -> None:
                await write(1)(tx)
                end_lease(served, lease.grant.lease)
                await asyncio.sleep(3600)

            with pytest.raises(errors.LeaseEndedError, match="lost while the work function ran"):
                await lease.apply("page", dawdles)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

    asyncio.run(main())
    assert count(served, "select count(*) from pages") == 0


def test_r43_a_task_may_be_cancelled_when_the_lease_is_lost(
    fence: Callable[[], Any], served: Database
) -> None:
    async def worker() -> None:
        async with fence() as owner, owner.hold(RESOURCE, operation="settle", ttl=4) as lease:
            task = asyncio.current_task()
            assert task is not None
            lease.on_lost(task.cancel)
            end_lease(served, lease.grant.lease)
            await asyncio.sleep(3600)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(worker())


def test_a_handle_belongs_to_the_event_loop_in_which_it_was_made(fence: Callable[[], Any]) -> None:
    async def elsewhere(handle: Any, use: str, *arguments: Any) -> None:
        with pytest.raises(errors.InvalidArgumentError, match="another event loop"):
            await getattr(handle, use)(*arguments)

    async def main() -> None:
        async with fence() as owner, owner.hold(RESOURCE, operation="settle") as lease:
            for handle, use, *arguments in (
                (owner, "position", RESOURCE),
                (lease, "position"),
                (lease, "release"),
                (lease, "wait_held"),
                (lease, "apply", "page", nothing),
            ):
                await asyncio.to_thread(asyncio.run, elsewhere(handle, use, *arguments))
            # What does not wait may be asked by anybody.
            assert await asyncio.to_thread(lambda: lease.state) is State.HELD
            await asyncio.to_thread(lease.check)

    asyncio.run(main())


def test_connecting_is_awaited_or_entered(served: Database, driver: Any) -> None:
    async def main() -> None:
        dsn = served.dsn("worker_a")
        fence = await pgfence.connect_async(dsn, driver=driver)
        async with fence:
            assert (await fence.position(RESOURCE)).highest_fence == 0
        with pytest.raises(errors.HandleClosedError):
            await fence.position(RESOURCE)

    asyncio.run(main())


def test_a_driver_that_is_unknown_or_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(driver: Any) -> None:
        await pgfence.connect_async("postgresql://nowhere", driver=driver)

    with pytest.raises(errors.InvalidArgumentError, match="psycopg or asyncpg, not 'aiopg'"):
        asyncio.run(connect("aiopg"))
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.delitem(sys.modules, "pgfence.drivers.asyncpg")
    monkeypatch.delattr("pgfence.drivers.asyncpg")
    with pytest.raises(ImportError, match=r"pip install 'pgfence\[asyncpg\]'"):
        asyncio.run(connect("asyncpg"))


@asynccontextmanager
async def own(driver: str, database: Database, **options: Any) -> AsyncIterator[Any]:
    """A caller's own connection."""
    dsn = database.dsn("worker_a")
    if driver == "psycopg":
        async with await psycopg.AsyncConnection.connect(dsn, **options) as conn:
            yield conn
    else:
        conn = await asyncpg.connect(dsn)
        yield conn
        await conn.close()


def test_r24_a_caller_s_connection_without_a_transaction_is_refused(
    plain: Callable[[], Any], served: Database, driver: Any
) -> None:
    options = {"autocommit": True} if driver == "psycopg" else {}

    async def main() -> None:
        async with (
            plain() as owner,
            owner.hold(RESOURCE, operation="settle") as lease,
            own(driver, served, **options) as conn,
        ):
            with pytest.raises(errors.InvalidArgumentError, match="autocommit"):
                await owner.apply(conn, lease, 1, {})
            async with conn.transaction():
                assert (await owner.apply(conn, lease, 1, {})).verdict == "ACCEPTED"

    asyncio.run(main())
    assert count(served, RECEIPTS) == 1


def test_a_caller_s_connection_keeps_its_ways(
    plain: Callable[[], Any], served: Database, driver: Any
) -> None:
    """A row factory of the caller's, and a connection of a pool."""

    async def main() -> None:
        async with plain() as owner, owner.hold(RESOURCE, operation="settle") as lease:
            if driver == "psycopg":
                async with own(driver, served, row_factory=dict_row) as conn:
                    assert (await owner.apply(conn, lease.token, 1, {})).verdict == "ACCEPTED"
            else:
                async with (
                    asyncpg.create_pool(served.dsn("worker_a"), min_size=1, max_size=1) as pool,
                    pool.acquire() as conn,
                    conn.transaction(isolation="serializable"),
                ):
                    assert (await owner.apply(conn, lease.token, 1, {})).verdict == "ACCEPTED"

    asyncio.run(main())
    assert count(served, RECEIPTS) == 1


def test_work_may_use_savepoints_and_a_transaction_of_its_own_is_one(
    plain: Callable[[], Any], served: Database
) -> None:
    async def work(tx: Any) -> None:
        await write(1)(tx)
        with pytest.raises(Exception, match="division by zero"):
            async with tx.transaction():
                await write(1)(tx)
                await execute(tx, "select 1 / 0")
        async with tx.transaction():
            await write(2)(tx)

    async def main() -> None:
        async with plain() as owner, owner.hold(RESOURCE, operation="settle") as lease:
            await lease.apply("page", work)

    asyncio.run(main())
    assert count(served, "select sum(times) from pages") == 2
    assert count(served, RECEIPTS) == 1


def test_psycopg_s_work_may_not_end_the_transaction(served: Database) -> None:
    async def main() -> None:
        async with (
            pgfence.connect_async(served.dsn("worker_a")) as fence,
            fence.hold(RESOURCE, operation="settle") as lease,
        ):
            with pytest.raises(psycopg.ProgrammingError, match="forbidden within a Transaction"):
                await lease.apply("page", lambda tx: tx.commit())
            await lease.apply("page", write(1))

    asyncio.run(main())
    assert count(served, RECEIPTS) == 1


@pytest.mark.parametrize("threshold", [None, 1])
def test_no_prepared_statement_is_left_where_none_is_wanted(
    served: Database, driver: Any, threshold: int | None
) -> None:
    async def main() -> list[Any]:
        names: list[Any] = []

        async def work(tx: Any) -> None:
            names.extend(await execute(tx, "select name from pg_prepared_statements"))

        async with (
            pgfence.connect_async(
                served.dsn("worker_a"), driver=driver, prepare_threshold=threshold
            ) as fence,
            fence.hold(RESOURCE, operation="settle") as lease,
        ):
            for page in range(4):
                await lease.apply(page, work)
        return [name for (name,) in names if name]

    assert bool(asyncio.run(main())) is (threshold is not None)


def test_a_call_that_takes_too_long_is_cancelled_in_the_server(
    database: Database, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (psycopg_async, asyncpg_driver):  # or a slow moment costs the connection
        monkeypatch.setattr(module, "CANCEL", PATIENCE)
    blocker = database.connect("billing_owner", autocommit=False)
    blocker.execute("create table locked ()")
    blocker.commit()
    blocker.execute("lock locked")

    def steps(query: str, within: float) -> protocol.Steps[Any]:
        (rows,) = yield protocol.Batch((protocol.Call(query),), within=within)
        return rows

    async def main() -> None:
        session: AsyncSession = SESSIONS[driver](database.dsn("billing_owner"), prepare_threshold=5)
        pid = await session.run(steps("select pg_backend_pid()", PATIENCE))
        with pytest.raises(protocol.Failed) as caught:
            await session.run(steps("select count(*) from locked", 0.3))
        assert (caught.value.sqlstate, caught.value.lost) == ("57014", False)
        assert count(database, "select count(*) from pg_locks where not granted") == 0
        assert await session.run(steps("select pg_backend_pid()", PATIENCE)) == pid
        session.close()

    asyncio.run(main())


def test_connecting_takes_no_longer_than_what_it_is_for(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But two seconds, as libpq has it."""
    limits: list[float] = []

    async def new(_: AsyncSession, timeout: float) -> Any:
        limits.append(timeout)
        raise {"psycopg": psycopg, "asyncpg": asyncpg}[driver].InterfaceError("silence")

    async def main() -> None:
        session: AsyncSession = SESSIONS[driver]("", prepare_threshold=5)
        steps: list[protocol.Step] = [protocol.Batch((), within=7)]
        steps += [protocol.Reopen(4), protocol.Reopen(1), protocol.Reopen()]
        for step in steps:
            with pytest.raises(protocol.Failed, match="silence"):
                await session.run(one_step(step))

    monkeypatch.setattr(SESSIONS[driver], "_new", new)
    asyncio.run(main())
    assert limits == [7, 4, 2, 10]


def test_a_listen_that_is_not_answered_is_a_connection_lost(
    database: Database, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (psycopg_async, asyncpg_driver):
        for constant in ("SHORTEST_CALL", "CANCEL"):
            monkeypatch.setattr(module, constant, 0.1)

    async def main(dsn: str) -> None:
        session: AsyncSession = SESSIONS[driver](dsn, prepare_threshold=5)
        with pytest.raises(protocol.Failed, match="no answer") as caught:
            await asyncio.wait_for(session.run(one_step(protocol.Listen("silence"))), PATIENCE)
        assert caught.value.lost

    with proxy_to(database.dsn("worker_a")) as proxy:
        proxy.freeze_at(b"silence")
        asyncio.run(main(proxy.dsn))


def test_a_dsn_is_what_libpq_takes(database: Database, keys: Keys, driver: Any) -> None:
    parameters: dict[str, Any] = conninfo.conninfo_to_dict(database.dsn("worker_a"))
    keywords = conninfo.make_conninfo(
        "", **(parameters | {"application_name": "settler 7 %&=", "connect_timeout": "7"})
    )

    async def main() -> None:
        async with (
            pgfence.connect_async(keywords, driver=driver) as fence,
            fence.hold(RESOURCE, operation="settle") as lease,
        ):

            async def work(tx: Any) -> None:
                found = await execute(tx, "select current_setting('application_name')")
                assert found == [("settler 7 %&=",)]

            await lease.apply("page", work)

    with registry(database, keys):
        asyncio.run(main())


def test_r15_work_that_has_not_run_leaves_no_receipt(
    plain: Callable[[], Any], served: Database
) -> None:
    """It returns what it should have awaited."""

    async def forgets(tx: Any) -> Any:
        return write(1)(tx)

    async def main() -> None:
        async with plain() as fence, fence.hold(RESOURCE, operation="settle") as lease:
            with pytest.raises(errors.InvalidArgumentError, match="nothing was written"):
                await lease.apply({"page": 1}, forgets)
            with pytest.raises(errors.InvalidArgumentError, match="nothing was written"):
                await lease.apply_many([({"page": 1}, write(1)), ({"page": 2}, forgets)])
            assert count(served, RECEIPTS) == 0
            assert (await lease.apply({"page": 1}, write(1))).segment_seq == 1

    asyncio.run(main())
    assert count(served, RECEIPTS) == 1


def test_any_date_style_that_a_dba_sets_will_do(
    database: Database, keys: Keys, driver: Any
) -> None:
    set_for_roles(database, "datestyle", "German")

    async def main() -> None:
        async with (
            pgfence.connect_async(database.dsn("worker_a"), driver=driver) as fence,
            fence.hold(RESOURCE, operation="settle") as lease,
        ):
            assert (await lease.apply({"page": 1}, nothing)).segment_seq == 1

    with registry(database, keys):
        asyncio.run(main())
