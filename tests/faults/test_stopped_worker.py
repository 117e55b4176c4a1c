"""A worker that is stopped (SIGSTOP) in an open segment, past its lease, and then continued."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import pgfence
from tests.faults.conftest import RESOURCE, worker_process
from tests.registry import registry, registry_process
from tests.support import PATIENCE, Database, Keys, wait_until, wait_until_state
from tests.workers import in_background

TTL = 5.0
UPDATE = "update invoices set state = 'by A' where id = 1"
UNSET = [
    "set idle_in_transaction_session_timeout = 0",
    "select set_config('transaction_timeout', '0', false)"
    " where current_setting('server_version_num')::int >= 170000",
]


def rows(database: Database) -> list[tuple[int, str]]:
    query = "select id, state from invoices where id in (1, 2) order by id"
    return database.connect().execute(query).fetchall()


def take_over(database: Database) -> pgfence.Receipt:
    """The next owner: acquires as soon as it can, and writes the row that A had changed."""
    with (
        pgfence.connect(database.dsn("worker_b")) as fence,
        fence.hold(RESOURCE, operation="settle", timeout=PATIENCE) as lease,
    ):
        return lease.apply(
            {"page": "of B"},
            lambda tx: tx.execute("update invoices set state = 'by B' where id = 1"),
        )


def test_r19_r20_the_server_ends_a_stopped_owner_s_session_and_the_next_one_writes(
    invoices: Database, keys: Keys
) -> None:
    watch = invoices.connect()
    with (
        registry(invoices, keys),
        worker_process(invoices.dsn("worker_a"), RESOURCE, TTL, UPDATE) as worker,
    ):
        worker.hear("connected")
        first_fence = worker.hear("held")["fence_token"]
        pid = worker.hear("in work")["pid"]
        worker.process.send_signal(signal.SIGSTOP)
        wait_until_state(watch, pid, None)

        receipt = take_over(invoices)
        assert receipt.fence_token == first_fence + 1
        assert rows(invoices) == [(1, "by B"), (2, "open")]

        worker.go_on()
        worker.process.send_signal(signal.SIGCONT)
        assert worker.hear("failed")["error"] == "LeaseEndedError"
        assert worker.hear("failed")["error"] == "NotHeldError"
        worker.hear("left")
    assert rows(invoices) == [(1, "by B"), (2, "open")]
    receipts = watch.execute("select fence_token, segment_seq from pgfence.receipts").fetchall()
    assert receipts == [(receipt.fence_token, 1)]


def test_r20_an_owner_that_unset_its_time_outs_is_ended_by_the_registry(
    invoices: Database, key_file: Path, tmp_path: Path
) -> None:
    watch = invoices.connect()
    watch.execute("grant pg_signal_backend to registry")
    try:
        with (
            registry_process(
                invoices.dsn("registry"), key_file, tmp_path / "registry.log"
            ) as process,
            worker_process(invoices.dsn("worker_a"), RESOURCE, TTL, UPDATE, *UNSET) as worker,
        ):
            worker.hear("connected")
            worker.hear("held")
            pid = worker.hear("in work")["pid"]
            worker.process.send_signal(signal.SIGSTOP)

            take_over(invoices)
            wait_until_state(watch, pid, None)
            process.wait_for("ended an overdue session")
            # Said once more at the next look, where the session has not gone by then.
            ended = {(e["pid"], e["resource"]) for e in process.events("ended an overdue session")}
            assert ended == {(pid, RESOURCE)}

            worker.go_on()
            worker.process.send_signal(signal.SIGCONT)
            worker.hear("failed")
            assert worker.hear("failed")["error"] == "NotHeldError"
            worker.hear("left")
    finally:
        watch.execute("revoke pg_signal_backend from registry")
    assert rows(invoices) == [(1, "by B"), (2, "open")]


def test_r20_a_registry_that_may_not_end_sessions_says_so_once(
    invoices: Database, key_file: Path, tmp_path: Path
) -> None:
    log = tmp_path / "registry.log"
    with (
        registry_process(invoices.dsn("registry"), key_file, log) as process,
        worker_process(invoices.dsn("worker_a"), RESOURCE, TTL, UPDATE, *UNSET) as worker,
    ):
        worker.hear("connected")
        worker.hear("held")
        worker.hear("in work")
        worker.process.send_signal(signal.SIGSTOP)
        taking_over = in_background(lambda: take_over(invoices))
        process.wait_for("may not end an overdue session")
        assert not taking_over.done(), "held while the old owner's transaction was open"
        worker.process.kill()
        taking_over.result(PATIENCE)
        (said,) = process.events("may not end an overdue session")
        assert "pg_signal_backend" in said["next_step"]


@pytest.mark.parametrize(
    ("heedless", "how", "error"),
    [
        (True, "", "NotAdmittedError"),
        (True, "commit", "LeaseEndedError"),
        (False, "", "LeaseEndedError"),
        (False, "commit", "LeaseEndedError"),
    ],
)
def test_r19_an_owner_that_is_continued_before_the_server_noticed_does_not_commit_late(
    invoices: Database, keys: Keys, heedless: bool, how: str, error: str
) -> None:
    """Its own time-outs are off and no successor waits: guard and look at COMMIT are left, and the
    client's own caution (R43).
    """
    with (
        registry(invoices, keys),
        worker_process(
            invoices.dsn("worker_a"), RESOURCE, TTL, UPDATE, *UNSET, heedless=heedless
        ) as worker,
    ):
        worker.hear("connected")
        worker.hear("held")
        worker.hear("in work")
        worker.process.send_signal(signal.SIGSTOP)
        watch = invoices.connect()
        over = "select clock_timestamp() > max(lease_ends_at) from pgfence_registry.grants"
        wait_until(lambda: watch.execute(over).fetchone() == (True,), "the lease is over")
        worker.go_on(how)
        worker.process.send_signal(signal.SIGCONT)
        assert worker.hear("failed")["error"] == error
        assert worker.hear("failed")["error"] == "NotHeldError"
        worker.hear("left")
    assert rows(invoices) == [(1, "open"), (2, "open")]
