"""pgbouncer in transaction mode: what the conformance suite does not show on its way through it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import conninfo
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

import pgfence
from pgfence import errors
from pgfence.client import protocol
from pgfence.drivers import psycopg as driver
from pgfence.drivers.psycopg import Session, is_pooled
from tests import guarded
from tests.guarded import BATCH, DAY, NEXT_BATCH
from tests.pgbouncer import SHARED, PooledDatabase, Pooler, through
from tests.registry import registry
from tests.support import PATIENCE, Database, Keys, wait_until, wait_until_blocked

#: What another client may leave behind, and what would change how SQL is read, run or answered.
LEFT_BEHIND = {
    "search_path": "",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "DateStyle": "German, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "client_min_messages": "error",
    "row_security": "off",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "quote_all_identifiers": "on",
    "plan_cache_mode": "force_generic_plan",
    "enable_indexscan": "off",
    "idle_in_transaction_session_timeout": "5min",
    "statement_timeout": "5min",
    "lock_timeout": "5min",
}


@pytest.fixture
def served(database: Database, pooler: Pooler, keys: Keys) -> Iterator[PooledDatabase]:
    """Guarded invoices, and workers that come through the pooler."""
    owner = database.connect("billing_owner")
    guarded.make_table(owner, "invoices", "plain")
    guarded.protect(owner, "invoices")
    with registry(database, keys), through(pooler, database) as pooled:
        yield pooled


@pytest.fixture
def fence(served: PooledDatabase) -> Iterator[pgfence.Fence]:
    with pgfence.connect(served.dsn("worker_a")) as fence:
        yield fence


def add_invoice(tx: psycopg.Connection[Any]) -> None:
    tx.execute("insert into public.invoices values (1, %s, 10)", [DAY])


def every_session(served: PooledDatabase, query: str) -> list[list[Any]]:
    """The answer of each of the server sessions that the pool of worker_a holds."""
    assert served.pooler is not None
    answers = []
    with served.pooler.at_once(served.dsn("worker_a"), _sessions(served)) as clients:
        for client in clients:
            answers.append(guarded.run(client, query).fetchall())
    assert len(answers) >= SHARED
    return answers


def _sessions(served: PooledDatabase) -> int:
    return len(
        served.connect()
        .execute(
            "select from pg_stat_activity where usename = 'worker_a' and datname = %s",
            [served.name],
        )
        .fetchall()
    )


def test_a_client_gets_another_server_session_in_every_transaction(served: PooledDatabase) -> None:
    """The control of all others: this pooler does what hurts."""
    client = served.connect("worker_a")
    backends = [client.execute("select pg_backend_pid()").fetchone() for _ in range(SHARED)]
    assert len(set(backends)) == SHARED
    assert client.info.backend_pid not in {row[0] for row in backends if row}


def test_a_pooler_is_noticed(served: PooledDatabase, database: Database) -> None:
    assert is_pooled(served.connect("worker_a"))
    assert not is_pooled(database.connect("worker_a"))


def test_a_client_that_prepares_statements_fails_and_ours_prepares_none(
    fence: pgfence.Fence, served: PooledDatabase
) -> None:
    client = served.connect("worker_a", prepare_threshold=0)
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        for _ in range(SHARED):
            client.execute("select 1")

    def work(tx: psycopg.Connection[Any]) -> None:
        for _ in range(10):
            tx.execute("select 2")

    with fence.hold(BATCH, operation="settle") as lease:
        for page in range(10):
            lease.apply({"page": page}, work)


def test_an_engine_that_prepares_statements_is_told_what_to_set(served: PooledDatabase) -> None:
    arguments = conninfo.conninfo_to_dict(served.dsn("worker_a"))
    engine = create_engine("postgresql+psycopg://", connect_args=arguments)

    def work(tx: Connection) -> None:
        for _ in range(10):
            tx.execute(text("select 2"))

    with (
        pgfence.connect(engine) as fence,
        fence.hold(BATCH, operation="settle") as lease,
        pytest.raises(DBAPIError) as caught,
    ):
        for page in range(10):
            lease.apply({"page": page}, work)
    assert "prepare_threshold" in "".join(caught.value.__notes__)
    engine.dispose()


def test_what_others_left_on_the_connections_does_not_matter(
    fence: pgfence.Fence, served: PooledDatabase
) -> None:
    assert served.pooler is not None
    with served.pooler.at_once(served.dsn("worker_a"), 6) as clients:
        for client in clients:
            for name, value in LEFT_BEHIND.items():
                client.execute("select set_config(%s, %s, false)", [name, value])
    victim = served.connect("worker_a", prepare_threshold=None)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        victim.execute("insert into public.invoices values (1, %s, 10)", [DAY])

    with fence.hold(BATCH, operation="settle") as lease:
        receipt = lease.apply({"page": 1}, add_invoice)
        with pytest.raises(errors.PayloadConflictError):
            lease.apply({"page": 2}, add_invoice, segment=1)
        assert lease.apply({"page": 1}, add_invoice, segment=1) == receipt
        assert lease.position().last_segment == 1
        lease.advance()
    assert receipt.accepted_at.tzinfo is not None


def test_we_leave_nothing_on_the_connections(fence: pgfence.Fence, served: PooledDatabase) -> None:
    for _ in range(2):
        with fence.hold(BATCH, operation="settle") as lease:
            lease.apply({"page": 1}, add_invoice)
            with pytest.raises(errors.SegmentGapError):
                lease.apply({"page": 9}, add_invoice, segment=9)
            lease.apply({"page": 2}, lambda tx: tx.execute("delete from public.invoices"))
    queries = (
        "select name, setting from pg_settings where source = 'session'"
        " and name not in ('application_name', 'client_encoding', 'DateStyle', 'TimeZone',"
        " 'standard_conforming_strings')",  # what pgbouncer sets for each client
        "select name from pg_prepared_statements",
        "select * from pg_listening_channels()",
        "select mode from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'",
        "select relname from pg_class where relnamespace = pg_my_temp_schema()",
    )
    for query in queries:
        assert not any(every_session(served, query)), query


def test_r36_a_waiter_gets_the_resource_though_nobody_can_wake_it(
    fence: pgfence.Fence, served: PooledDatabase
) -> None:
    """And whoever listens on a server session of the pool, of use or not, goes on listening."""
    assert served.pooler is not None
    with served.pooler.at_once(served.dsn("worker_a")) as clients:
        for client in clients:
            client.execute("listen somebody_else")
    got = threading.Event()

    def waiter() -> None:
        with fence.hold(BATCH, operation="settle"):
            got.set()

    with fence.hold(BATCH, operation="settle"):
        thread = threading.Thread(target=waiter)
        thread.start()
        waiting = "select from pgfence_registry.requests where state = 'WAITING'"
        watch = served.connect()
        wait_until(lambda: watch.execute(waiting).fetchone() is not None, "the second one waits")
    assert got.wait(PATIENCE)
    thread.join(PATIENCE)
    channels = [
        row for rows in every_session(served, "select pg_listening_channels()") for row in rows
    ]
    assert set(channels) == {("somebody_else",)}


def test_a_call_that_takes_too_long_is_cancelled_and_nobody_else(
    served: PooledDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "CANCEL", PATIENCE)  # or a slow moment costs the connection
    owner = served.connect("billing_owner", autocommit=False)
    owner.execute("lock invoices")
    session = Session(served.dsn("worker_a"), prepare_threshold=None)

    def steps(within: float | None) -> protocol.Steps[Any]:
        return (
            yield protocol.Batch(
                (protocol.Call("select count(*) from public.invoices"),), within=within
            )
        )

    other = served.connect("worker_a", autocommit=False)
    pid = other.execute("select pg_backend_pid()").fetchone()
    assert pid is not None
    bystander = threading.Thread(target=other.execute, args=["select from public.invoices"])
    bystander.start()
    wait_until_blocked(served.connect(), pid[0])
    with pytest.raises(protocol.Failed, match="canceling statement") as caught:
        session.run(steps(0.3))
    assert (caught.value.sqlstate, caught.value.lost) == ("57014", False)
    assert bystander.is_alive()
    owner.rollback()
    bystander.join(PATIENCE)
    assert session.run(steps(None)) == [[(0,)]]
    session.close()


def test_two_leases_share_the_pool(fence: pgfence.Fence) -> None:
    with (
        fence.hold(BATCH, operation="settle") as one,
        fence.hold(NEXT_BATCH, operation="settle") as two,
    ):
        one.apply(1, lambda tx: two.apply(1, lambda _: None))
        one.apply(2, lambda tx: two.apply(2, lambda _: None))
