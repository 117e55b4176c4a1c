"""A worker that is interrupted (SIGINT) while it waits, and one that is killed while it holds."""

from __future__ import annotations

import signal

import pgfence
from tests.faults.conftest import RESOURCE, worker_process
from tests.registry import registry
from tests.support import Database, Keys, wait_until

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
        assert worker.process.wait(20) != 0
        assert watch.execute(states).fetchall() == [("WITHDRAWN",)]


def test_r15_a_killed_worker_leaves_nothing_and_the_next_one_writes(
    invoices: Database, keys: Keys
) -> None:
    with (
        registry(invoices, keys),
        worker_process(invoices.dsn("worker_a"), RESOURCE, 1, UPDATE) as worker,
        pgfence.connect(invoices.dsn("worker_b")) as fence,
    ):
        worker.hear("connected")
        worker.hear("held")
        worker.hear("in work")
        worker.process.kill()
        with fence.hold(RESOURCE, operation="settle", timeout=20) as lease:
            assert lease.position().highest_fence == 0
            lease.apply({"page": 1}, lambda tx: tx.execute("update invoices set state = 'by B'"))
    row = invoices.connect().execute("select distinct state from invoices").fetchall()
    assert row == [("by B",)]
