"""A worker that is interrupted (SIGINT) while it waits, and one that is killed while it holds."""

from __future__ import annotations

import itertools
import signal
from typing import Any

import psycopg
import pytest
from psycopg.pq import PipelineStatus

import pgfence
from tests.faults.conftest import RESOURCE, worker_process
from tests.registry import registry
from tests.support import PATIENCE, Database, Keys, wait_until
from tests.workers import as_owner

UPDATE = "update invoices set state = 'by A' where id = 1"


def test_r36_an_interrupted_waiter_leaves_the_queue(invoices: Database, keys: Keys) -> None:
    watch = invoices.connect()
    states = "select state from pgfence_registry.requests where workload = 'worker-a'"
    with (
        registry(invoices, keys),
        pgfence.connect(invoices.dsn("worker_b")) as fence,
        fence.hold(RESOURCE, operation="settle"),
        worker_process(invoices.dsn("worker_a"), RESOURCE, 30) as worker,
    ):
        worker.hear("connected")
        wait_until(lambda: watch.execute(states).fetchall() == [("WAITING",)], "A waits")
        worker.process.send_signal(signal.SIGINT)
        assert worker.process.wait(PATIENCE) != 0
        assert watch.execute(states).fetchall() == [("WITHDRAWN",)]


@pytest.mark.usefixtures("enough_time")
def test_r36_an_interrupt_at_any_moment_of_asking_leaves_no_one_in_the_queue(
    invoices: Database, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it comes between two results, and psycopg complains of something else."""
    waiting = "select count(*) from pgfence_registry.requests where state = 'WAITING'"
    watch = invoices.connect()
    psycopg_waits = psycopg.Connection.wait
    moments = itertools.count()
    interrupted_at = -1

    def wait(conn: psycopg.Connection[Any], generator: Any, *args: Any, **kwargs: Any) -> Any:
        if conn.pgconn.pipeline_status != PipelineStatus.OFF and next(moments) == interrupted_at:
            raise KeyboardInterrupt
        return psycopg_waits(conn, generator, *args, **kwargs)

    with (
        registry(invoices, keys),
        pgfence.connect(invoices.dsn("worker_b")) as holder,
        holder.hold(RESOURCE, operation="settle"),
        pgfence.connect(invoices.dsn("worker_a")) as fence,
        monkeypatch.context() as patch,
    ):
        patch.setattr(psycopg.Connection, "wait", wait)
        for interrupted_at in itertools.count():
            moments = itertools.count()
            try:
                with fence.hold(RESOURCE, operation="settle", timeout=0):
                    pass
            except KeyboardInterrupt:
                pass
            except pgfence.AcquireTimeoutError:
                break
            assert watch.execute(waiting).fetchone() == (0,), f"interrupted at {interrupted_at}"
    assert interrupted_at >= 4, "it was never interrupted"


def test_r15_a_killed_worker_leaves_nothing_and_the_next_one_writes(
    invoices: Database, keys: Keys
) -> None:
    with (
        registry(invoices, keys),
        worker_process(invoices.dsn("worker_a"), RESOURCE, 3, UPDATE) as worker,
        pgfence.connect(invoices.dsn("worker_b")) as fence,
    ):
        worker.hear("connected")
        worker.hear("held")
        worker.hear("in work")
        worker.process.kill()
        with fence.hold(RESOURCE, operation="settle", timeout=PATIENCE) as lease:
            assert lease.position().highest_fence == 0
            lease.apply({"page": 1}, lambda tx: tx.execute("update invoices set state = 'by B'"))
    row = invoices.connect().execute("select distinct state from invoices").fetchall()
    assert row == [("by B",)]


def test_r46_an_interrupted_map_stops_in_order_and_releases(invoices: Database, keys: Keys) -> None:
    watch = invoices.connect()
    applied = "select count(*) from pgfence.receipts"
    with (
        registry(invoices, keys),
        worker_process(invoices.dsn("worker_a"), RESOURCE, module="tests.faults.mapper") as worker,
    ):
        worker.hear("computing")
        wait_until(lambda: watch.execute(applied).fetchone() == (3,), "three are applied")
        worker.process.send_signal(signal.SIGINT)
        assert worker.process.wait(PATIENCE) != 0
        with (
            pgfence.connect(invoices.dsn("worker_b")) as fence,
            fence.hold(RESOURCE, operation="settle", timeout=30) as lease,  # not after 60 seconds
        ):
            assert lease.position().total_segments == 3
    rows = watch.execute("select id from invoices where state = 'by A' order by id").fetchall()
    assert rows == [(1,), (2,), (3,)]


def test_r46_a_killed_map_is_gone_on_with_by_whoever_comes_next(
    invoices: Database, keys: Keys
) -> None:
    computed: list[int] = []

    def compute(invoice: int) -> int:
        computed.append(invoice)
        return invoice

    def work(tx: Any, invoice: int) -> None:
        tx.execute("update invoices set state = 'by B' where id = %s", [invoice])

    watch = invoices.connect()
    applied = "select count(*) from pgfence.receipts"
    with (
        registry(invoices, keys),
        worker_process(invoices.dsn("worker_a"), RESOURCE, module="tests.faults.mapper") as worker,
        pgfence.connect(invoices.dsn("worker_b")) as fence,
    ):
        worker.hear("computing")
        wait_until(lambda: watch.execute(applied).fetchone() == (3,), "three are applied")
        worker.process.kill()
        as_owner(invoices, "update pgfence_registry.grants set lease_ends_at = clock_timestamp()")
        before = fence.position(RESOURCE).operation_root or ""
        with fence.hold(RESOURCE, operation="settle", continues_root=before) as lease:
            receipts = lease.map(compute, range(1, 11), work)
    assert sorted(computed) == list(range(4, 11))
    assert [receipt.segment_seq for receipt in receipts] == list(range(1, 8))
    rows = watch.execute("select state from invoices order by id").fetchall()
    assert rows == [("by A",)] * 3 + [("by B",)] * 7
