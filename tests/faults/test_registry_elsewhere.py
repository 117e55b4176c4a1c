"""A worker that is stopped past its lease, where minting does not see its transaction (R21)."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

import pgfence
from tests.elsewhere import use_registry_elsewhere
from tests.faults.conftest import RESOURCE, worker_process
from tests.faults.test_stopped_worker import TTL, UNSET, UPDATE, rows
from tests.registry import registry
from tests.support import PATIENCE, Database, Keys, wait_until, wait_until_state
from tests.workers import in_background

ADVANCING = (
    "select count(*) from pg_stat_activity"
    " where query like '%pgfence.advance%' and wait_event_type = 'Lock'"
)


@pytest.fixture
def elsewhere(
    invoices: Database, registry_database: Database, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    """The database of a registry that signs."""
    use_registry_elsewhere(invoices, registry_database, tolerance_ms=100)
    monkeypatch.setenv("PGFENCE_REGISTRY", registry_database.dsn("worker_a"))
    with registry(registry_database, keys):
        yield registry_database


def take_over(database: Database, registered: Database) -> list[tuple[int, str]]:
    """The next owner: what it reads first; then it writes the row that A had changed."""
    with (
        pgfence.connect(database.dsn("worker_b"), registry=registered.dsn("worker_b")) as fence,
        fence.hold(RESOURCE, operation="settle", ttl=30, timeout=PATIENCE) as lease,
    ):
        read = rows(database)
        lease.apply(
            {"page": "of B"},
            lambda tx: tx.execute("update invoices set state = 'by B' where id = 1"),
        )
    return read


def test_r20_the_database_ends_a_stopped_owner_s_session_and_the_next_one_writes(
    invoices: Database, elsewhere: Database
) -> None:
    watch = invoices.connect()
    with worker_process(invoices.dsn("worker_a"), RESOURCE, TTL, UPDATE) as worker:
        worker.hear("connected")
        worker.hear("held")
        pid = worker.hear("in work")["pid"]
        worker.process.send_signal(signal.SIGSTOP)
        assert take_over(invoices, elsewhere) == [(1, "open"), (2, "open")]
        wait_until_state(watch, pid, None)
        worker.go_on()
        worker.process.send_signal(signal.SIGCONT)
        assert worker.hear("failed")["error"] == "LeaseEndedError"
        assert worker.hear("failed")["error"] == "NotHeldError"
        worker.hear("left")
    assert rows(invoices) == [(1, "by B"), (2, "open")]


def test_r21_the_next_owner_reads_only_when_the_old_one_can_write_no_more(
    invoices: Database, elsewhere: Database
) -> None:
    """The old owner has unset its time-outs: its transaction outlives the grant of the next one."""
    watch = invoices.connect()
    with worker_process(
        invoices.dsn("worker_a"), RESOURCE, TTL, UPDATE, *UNSET, heedless=True
    ) as worker:
        worker.hear("connected")
        worker.hear("held")
        worker.hear("in work")
        worker.process.send_signal(signal.SIGSTOP)
        taking_over = in_background(lambda: take_over(invoices, elsewhere))
        wait_until(lambda: watch.execute(ADVANCING).fetchone() == (1,), "B waits to advance")
        assert not taking_over.done()
        worker.go_on()
        worker.process.send_signal(signal.SIGCONT)
        worker.hear("failed")
        assert taking_over.result(PATIENCE) == [(1, "open"), (2, "open")]
        worker.hear("failed")
        worker.hear("left")
    assert rows(invoices) == [(1, "by B"), (2, "open")]
