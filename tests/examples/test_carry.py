"""examples/carry.py: grant, root and segment go to another process, which writes."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.examples.conftest import BATCH, BATCH_DATE, EXAMPLES, receipts, settled, started
from tests.support import PATIENCE, Database, Keys, wait_until
from tests.workers import Worker, end_lease, fence_row

HOLDER, WRITER = ["python3", "carry.py", BATCH_DATE], ["python3", "carry.py", "--write"]


def test_the_other_process_settles_the_batch(invoices: Database, tools: dict[str, str]) -> None:
    ended = subprocess.run(
        ["sh", "-c", f"{' '.join(HOLDER)} | {' '.join(WRITER)}"],
        cwd=EXAMPLES,
        env=tools | {"PGFENCE_DSN": invoices.dsn("worker_a")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    said = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(m["segment"], m["verdict"]) for m in said] == [(n, "ACCEPTED") for n in (1, 2, 3)]
    assert {m["root"] for m in said} == {fence_row(invoices, BATCH).operation_root}
    assert settled(invoices) == [("worker_a", 500)]
    assert fence_row(invoices, BATCH).current_lease is None, "the holder gives it back"


@pytest.mark.rule("R6", "R10", "R12", "R14")
def test_messages_that_are_late_or_double_or_out_of_order_do_no_harm(
    invoices: Database, tools: dict[str, str], keys: Keys
) -> None:
    env = {role: tools | {"PGFENCE_DSN": invoices.dsn(role)} for role in ("worker_a", "worker_b")}

    def deliver(writer: Any, message: str) -> str:
        writer.stdin.write(message)
        writer.stdin.flush()
        return str(json.loads(writer.stdout.readline())["verdict"])

    with (
        started(WRITER, env["worker_a"]) as writer,
        started(WRITER, env["worker_b"]) as stranger,
    ):
        with started(HOLDER, env["worker_a"]) as holder:
            first, second, third = (holder.stdout.readline() for _ in range(3))
            assert deliver(writer, second) == "SEGMENT_GAP"
            assert deliver(stranger, first) == "NOT_OWNER"
            assert deliver(writer, first) == "ACCEPTED"
            assert deliver(writer, first) == "REPLAYED"
            assert deliver(writer, second) == "ACCEPTED"
        wait_until(lambda: holder.poll() is not None, "the holder was killed")
        # Nobody renews the lease: another workload takes the batch, before the last message comes.
        end_lease(invoices, fence_row(invoices, BATCH).current_lease)
        b = Worker.login(invoices, keys, "worker_b")
        assert b.advance(b.acquire(BATCH).token).verdict == "ADVANCED"
        assert deliver(writer, third) == "STALE_OWNER"
    assert settled(invoices) == [("worker_a", 400), (None, 100)]
    assert receipts(invoices) == [(BATCH, 1, 1), (BATCH, 1, 2)]
