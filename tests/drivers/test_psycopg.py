"""psycopg 3, synchronous: what the common suite cannot ask."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import class_row, dict_row, namedtuple_row

import pgfence
from pgfence import errors
from pgfence.client import protocol
from pgfence.drivers import psycopg as driver
from pgfence.drivers.psycopg import Session
from tests.proxy import proxy_to
from tests.registry import registry
from tests.support import (
    PATIENCE,
    Database,
    Keys,
    set_for_roles,
    wait_until,
    wait_until_blocked,
)
from tests.workers import in_background

RESOURCE = "invoice-batch/2026-07-19"


@pytest.fixture
def fence(database: Database, keys: Keys) -> Iterator[pgfence.Fence]:
    with registry(database, keys), pgfence.connect(database.dsn("worker_a")) as fence:
        yield fence


def one_step(step: protocol.Step) -> protocol.Steps[None]:
    yield step


def receipts(database: Database) -> int:
    row = database.connect().execute("select count(*) from pgfence.receipts").fetchone()
    assert row is not None
    return int(row[0])


def test_an_error_while_an_interrupt_is_handled_is_that_error(
    fence: pgfence.Fence, database: Database
) -> None:
    """And the caller's connection stays open."""
    with fence.hold(RESOURCE, operation="settle") as lease, database.connect("outsider") as conn:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
                fence.apply(conn, lease, 1, "payload")
        assert conn.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_work_may_not_end_the_transaction(
    fence: pgfence.Fence, database: Database, end: str
) -> None:
    with fence.hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(psycopg.ProgrammingError, match="forbidden within a Transaction"):
            lease.apply({"page": 1}, lambda tx: getattr(tx, end)())
        assert receipts(database) == 0
        lease.apply({"page": 1}, lambda tx: tx.execute("select 1"))


def test_work_may_use_savepoints_pipelines_and_its_own_cursors(
    fence: pgfence.Fence, database: Database
) -> None:
    def work(tx: psycopg.Connection[Any]) -> None:
        with tx.transaction(), pytest.raises(psycopg.errors.DivisionByZero), tx.transaction():
            tx.execute("select 1 / 0")
        with tx.pipeline():
            tx.execute("select 1")
            tx.execute("select 2")
        assert tx.cursor(row_factory=dict_row).execute("select 1 as a").fetchone() == {"a": 1}
        with tx.cursor().copy("copy (select 1) to stdout") as copy:
            assert b"".join(copy) == b"1\n"

    with fence.hold(RESOURCE, operation="settle") as lease:
        lease.apply({"page": 1}, work)
    assert receipts(database) == 1


async def _coroutine(tx: Any) -> None:
    tx.execute("select 1")


def _generator(tx: Any) -> Iterator[None]:
    yield tx.execute("select 1")


async def _async_generator(tx: Any) -> AsyncIterator[None]:
    yield tx.execute("select 1")


@pytest.mark.parametrize("work", [_coroutine, _generator, _async_generator])
def test_r15_work_that_has_not_run_leaves_no_receipt(
    fence: pgfence.Fence, database: Database, work: Any
) -> None:
    """An async function given by mistake, or one that yields: calling it runs nothing of it."""
    with fence.hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(errors.InvalidArgumentError, match="nothing was written"):
            lease.apply({"page": 1}, work)
        with pytest.raises(errors.InvalidArgumentError, match="nothing was written"):
            lease.apply_many([({"page": 1}, lambda tx: tx.execute("select 1")), (2, work)])
        with pytest.raises(errors.InvalidArgumentError, match="nothing was written"):
            lease.map(str, [1], lambda tx, _: work(tx))
        assert receipts(database) == 0
        assert lease.apply({"page": 1}, lambda tx: tx.execute("select 1")).segment_seq == 1
    assert receipts(database) == 1


class Turns:
    """A lease's lock, and how often somebody wanted it.

    interrupted: the first one is, by Ctrl-C in place of the wait.
    """

    def __init__(self, lease: pgfence.Lease, *, interrupted: bool = False) -> None:
        self.wanted = 0
        self._interrupted = interrupted
        self._lock = lease._applying
        lease._applying = self  # type: ignore[assignment]

    def __enter__(self) -> None:
        self.wanted += 1
        if self._interrupted and self.wanted == 1:
            raise KeyboardInterrupt
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_r36_a_lease_may_be_released_by_several_threads_while_a_segment_runs(
    fence: pgfence.Fence,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(tx: Any) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    with fence.hold(RESOURCE, operation="settle", ttl=600) as lease:
        applied = in_background(lambda: lease.apply("page", work))
        assert begun.wait(PATIENCE)
        turns = Turns(lease)
        released = [in_background(lease.release) for _ in range(2)]
        wait_until(lambda: turns.wanted == 2, "both wait for the segment")
        go_on.set()
        for each in released:
            assert each.result(PATIENCE) is None
        assert applied.result(PATIENCE).segment_seq == 1
        assert lease.state is pgfence.State.RELEASED


def test_r36_a_release_that_is_interrupted_while_a_segment_runs_is_done_after_it(
    fence: pgfence.Fence, database: Database
) -> None:
    watch = database.connect()
    held = "select count(*) from pgfence_registry.grants where state = 'HELD'"
    begun, go_on = threading.Event(), threading.Event()

    def work(tx: Any) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    with (
        pytest.raises(KeyboardInterrupt),
        fence.hold(RESOURCE, operation="settle", ttl=600) as lease,
    ):
        applied = in_background(lambda: lease.apply("page", work))
        assert begun.wait(PATIENCE)
        turns = Turns(lease, interrupted=True)
    wait_until(lambda: turns.wanted == 2, "the release waits, and nobody for it")
    assert watch.execute(held).fetchone() == (1,)
    go_on.set()
    assert applied.result(PATIENCE).segment_seq == 1
    wait_until(lambda: watch.execute(held).fetchone() == (0,), "it is given back")
    assert lease.state is pgfence.State.RELEASED


class Anything:
    """A row that takes no keyword: a caller's row factory that would break ours."""


@pytest.mark.parametrize("row_factory", [dict_row, namedtuple_row, class_row(Anything)])
def test_a_caller_s_connection_may_have_any_row_factory(
    fence: pgfence.Fence, database: Database, row_factory: Any
) -> None:
    conn = database.connect("worker_a", autocommit=False, row_factory=row_factory)
    with fence.hold(RESOURCE, operation="settle") as lease:
        assert fence.apply(conn, lease, 1, {"page": 1}).verdict == "ACCEPTED"
        conn.commit()
    assert receipts(database) == 1


def test_a_caller_s_pipeline_stays_open(fence: pgfence.Fence, database: Database) -> None:
    conn = database.connect("worker_a", autocommit=False)
    with fence.hold(RESOURCE, operation="settle") as lease, conn.pipeline():
        conn.execute("select 1")
        assert fence.apply(conn, lease.token, 1, {}).verdict == "ACCEPTED"
        conn.execute("select 2")
        conn.commit()
    assert receipts(database) == 1


def test_autocommit_without_a_transaction_is_refused(
    fence: pgfence.Fence, database: Database
) -> None:
    conn = database.connect("worker_a", autocommit=True)
    with fence.hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(errors.InvalidArgumentError, match="autocommit"):
            fence.apply(conn, lease, 1, {})
        with conn.transaction():
            assert fence.apply(conn, lease, 1, {}).verdict == "ACCEPTED"
    assert receipts(database) == 1


def test_r41_a_lease_that_is_over_is_not_used_on_a_caller_s_connection_either(
    fence: pgfence.Fence, database: Database
) -> None:
    conn = database.connect("worker_a", autocommit=False)
    with fence.hold(RESOURCE, operation="settle") as lease:
        lease.release()
        with pytest.raises(errors.HandleClosedError):
            fence.apply(conn, lease, 1, {})


@pytest.mark.parametrize("isolation", list(psycopg.IsolationLevel))
def test_r51_a_caller_may_choose_the_isolation_level(
    fence: pgfence.Fence, database: Database, isolation: psycopg.IsolationLevel
) -> None:
    conn = database.connect("worker_a", autocommit=False)
    conn.isolation_level = isolation
    with fence.hold(RESOURCE, operation="settle") as lease:
        assert fence.apply(conn, lease, 1, {}).verdict == "ACCEPTED"
        conn.commit()
    assert receipts(database) == 1


def test_no_prepared_statement_is_left_where_none_is_wanted(database: Database, keys: Keys) -> None:
    """Behind a pooler in transaction mode."""
    names: list[Any] = []
    with (
        registry(database, keys),
        pgfence.connect(database.dsn("worker_a"), prepare_threshold=None) as fence,
        fence.hold(RESOURCE, operation="settle") as lease,
    ):
        for page in range(8):
            lease.apply(
                {"page": page},
                lambda tx: names.extend(tx.execute("table pg_prepared_statements").fetchall()),
            )
    assert names == []


def test_a_call_that_takes_too_long_is_cancelled_in_the_server(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "CANCEL", PATIENCE)  # or a slow moment costs the connection
    blocker = database.connect("billing_owner", autocommit=False)
    blocker.execute("create table locked ()")
    blocker.commit()
    blocker.execute("lock locked")
    session = Session(database.dsn("billing_owner"), prepare_threshold=None)

    def steps(within: float | None) -> protocol.Steps[Any]:
        (rows,) = yield protocol.Batch((protocol.Call("select pg_backend_pid()"),))
        yield protocol.Batch((protocol.Call("select count(*) from locked"),), within=within)
        return rows

    with pytest.raises(protocol.Failed, match="canceling statement") as caught:
        session.run(steps(0.3))
    assert (caught.value.sqlstate, caught.value.lost) == ("57014", False)
    left = database.connect().execute("select count(*) from pg_locks where not granted").fetchone()
    assert left == (0,)

    # Without a limit it waits as long as it takes.
    thread = threading.Thread(target=lambda: session.run(steps(None)))
    thread.start()
    watch = database.connect()
    waiting = "select pid from pg_locks where not granted and relation = 'locked'::regclass"
    pid = None
    while pid is None:
        pid = watch.execute(waiting).fetchone()
    wait_until_blocked(watch, pid[0])
    blocker.rollback()
    thread.join(PATIENCE)
    session.close()


def test_connecting_takes_no_longer_than_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """But two seconds, as libpq has it."""
    limits: list[int] = []

    def new(_: Session, timeout: int) -> Any:
        limits.append(timeout)
        raise psycopg.OperationalError("silence")

    monkeypatch.setattr(Session, "_new", new)
    session = Session("", prepare_threshold=5)
    steps = protocol.Batch((), within=7), protocol.Reopen(4), protocol.Reopen(1), protocol.Reopen()
    for step in steps:
        with pytest.raises(protocol.Failed, match="silence"):
            session.run(one_step(step))
    assert limits == [7, 4, 2, 10]


def test_a_listen_that_is_not_answered_is_a_connection_lost(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant in ("SHORTEST_CALL", "CANCEL"):
        monkeypatch.setattr(driver, constant, 0.1)

    with proxy_to(database.dsn("worker_a")) as proxy:
        session = Session(proxy.dsn, prepare_threshold=5)
        proxy.freeze_at(b"silence")
        listening = one_step(protocol.Listen("silence"))
        with pytest.raises(protocol.Failed, match="no answer within") as caught:
            in_background(lambda: session.run(listening)).result(PATIENCE)
    assert caught.value.lost


@pytest.mark.parametrize("style", ["SQL, DMY", "German", "Postgres, MDY"])
def test_any_date_style_that_a_dba_sets_will_do(database: Database, keys: Keys, style: str) -> None:
    """psycopg itself reads no timestamp but in ISO, as its own cursor shows here."""
    set_for_roles(database, "datestyle", style)
    with (
        registry(database, keys),
        pgfence.connect(database.dsn("worker_a")) as fence,
        fence.hold(RESOURCE, operation="settle") as lease,
        database.connect("worker_a") as conn,
    ):
        accepted = lease.apply({"page": 1}, lambda tx: tx.execute("select 1")).accepted_at
        with conn.transaction():
            verdict = fence.apply(conn, lease, 2, {"page": 2})
        assert verdict.accepted_at is not None
        assert verdict.accepted_at >= accepted
        with pytest.raises(NotImplementedError, match="DateStyle"):
            conn.execute("select now()").fetchone()


def test_a_connection_that_is_stuck_in_its_pipeline_is_lost(database: Database) -> None:
    """As after a session that the server ended, and here by a COPY, which psycopg cannot undo."""

    def steps() -> protocol.Steps[Any]:
        with pytest.raises(protocol.Failed) as caught:
            yield protocol.Batch((protocol.Call("copy (select 1) to stdout"),))
        assert caught.value.lost
        yield protocol.Reopen()
        (rows,) = yield protocol.Batch((protocol.Call("select 1"),))
        return rows

    session = Session(database.dsn("worker_a"), prepare_threshold=None)
    assert session.run(steps()) == [(1,)]
    session.close()
