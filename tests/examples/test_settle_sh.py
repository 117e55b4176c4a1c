"""examples/settle.sh: a batch in segments, in a shell, under `pgfence run`."""

from __future__ import annotations

import subprocess

import pytest

from tests.examples.conftest import BATCH, BATCH_DATE, EXAMPLES, receipts, settled, started
from tests.support import PATIENCE, Database, wait_until
from tests.workers import end_lease, fence_row


def settle(*arguments: str) -> list[str]:
    """The command line that settles the batch."""
    hold = ["pgfence", "run", "--resource", BATCH, "--operation", "settle", *arguments]
    return [*hold, "--", "sh", "settle.sh", BATCH_DATE]


def run(command: list[str], env: dict[str, str], database: Database, role: str) -> list[str]:
    """What it prints."""
    ended = subprocess.run(
        command,
        cwd=EXAMPLES,
        env=env | {"PGFENCE_DSN": database.dsn(role)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def test_the_script_settles_the_batch_page_by_page(
    invoices: Database, tools: dict[str, str]
) -> None:
    said = run(settle(), tools, invoices, "worker_a")
    assert said == [f"page {page} of 3: ACCEPTED" for page in (1, 2, 3)]
    assert settled(invoices) == [("worker_a", 500)]
    assert receipts(invoices) == [(BATCH, 1, segment) for segment in (1, 2, 3)]


@pytest.mark.rule("R15", "R43")
def test_the_script_loses_its_lease_in_the_second_page_and_another_owner_goes_on_there(
    invoices: Database, tools: dict[str, str]
) -> None:
    in_the_way, watch = invoices.connect(autocommit=False), invoices.connect()
    in_the_way.execute("select from invoices where invoice_id = 300 for update")
    waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    env = tools | {"PGFENCE_DSN": invoices.dsn("worker_a")}
    with started(settle("--ttl", "6"), env) as first:
        assert first.stdout.readline() == "page 1 of 3: ACCEPTED\n"
        wait_until(lambda: watch.execute(waits).fetchone() == (1,), "the second page waits")
        row = fence_row(invoices, BATCH)
        end_lease(invoices, row.current_lease)
        assert first.wait(PATIENCE) == 76
    in_the_way.rollback()
    said = run(settle("--take-up"), tools, invoices, "worker_b")
    assert said == ["page 2 of 3: ACCEPTED", "page 3 of 3: ACCEPTED"]
    assert settled(invoices) == [("worker_a", 200), ("worker_b", 300)]
    assert receipts(invoices) == [(BATCH, 1, 1), (BATCH, 2, 1), (BATCH, 2, 2)]


def test_the_script_stops_when_it_is_refused(invoices: Database, tools: dict[str, str]) -> None:
    """Started with a grant of another workload, as a person might who copies the environment."""
    stolen = tools | {
        "PGFENCE_DSN": invoices.dsn("worker_a"),
        "THEIRS": invoices.dsn("worker_b"),
    }
    command = [*settle()[:-3], "sh", "-c", f'PGFENCE_DSN=$THEIRS sh settle.sh "{BATCH_DATE}"']
    with started(command, stolen, stderr=subprocess.STDOUT) as process:
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (1, "page 1 of 3 was refused: NOT_OWNER\n")
    assert settled(invoices) == [(None, 500)]
