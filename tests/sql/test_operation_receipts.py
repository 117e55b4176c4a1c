"""What a successor compares with its own work, and what a worker asks for that was acknowledged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import Database, Keys
from tests.workers import Worker, age_receipts, grant_of

RESOURCE = "invoice-batch/2026-07-19"
LISTED = "select * from pgfence.operation_receipts(%s, %s, %s, %s) as r"
MISSING = "select digest from pgfence.missing_receipts(%s, %s, %s, %s)"


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture
def rival(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_b")


def write(worker: Worker, segments: int, continues_root: str = "") -> tuple[str, list[Any]]:
    """One owner after the other: its root, and what it was answered."""
    held = worker.acquire(RESOURCE, continues_root=continues_root)
    worker.advance(held.token)
    written = [worker.apply(held.token, n, f"{n}") for n in range(1, segments + 1)]
    assert {verdict.verdict for verdict in written} <= {"ACCEPTED"}
    worker.release(held.lease)
    return grant_of(held.token).operation_root, written


def listed(worker: Worker, root: str, after: int = 0, limit: int = 100) -> list[Any]:
    return worker.conn.execute(LISTED, [RESOURCE, root, after, limit]).fetchall()


def missing(worker: Worker, *known: tuple[str, int, str]) -> list[str]:
    roots, segments, digests = ([k[i] for k in known] for i in range(3))
    rows = worker.conn.execute(MISSING, [RESOURCE, roots, segments, digests]).fetchall()
    return [digest for (digest,) in rows]


def prune(database: Database, keys: Keys, receipts: int) -> None:
    dba = Worker.login(database, keys, "dba")
    pruned = dba.call("select * from pgfence.prune_receipts(%s, '1 hour', 3)", [RESOURCE])
    assert pruned.receipts == receipts


@pytest.mark.rule("R46")
def test_r46_receipts_are_numbered_through_over_all_owners_of_an_operation(
    worker: Worker, rival: Worker
) -> None:
    unrelated, _ = write(worker, 1)
    first, one = write(worker, 2)
    second, two = write(rival, 0, first)
    third, three = write(worker, 3, second)
    rows = [
        (1, 2, 1, one[0].payload_digest),
        (2, 2, 2, one[1].payload_digest),
        (3, 4, 1, three[0].payload_digest),
        (4, 4, 2, three[1].payload_digest),
        (5, 4, 3, three[2].payload_digest),
    ]
    assert not two
    assert listed(worker, third) == rows
    assert listed(worker, second) == listed(worker, first) == rows[:2]
    assert [row[0] for row in listed(worker, unrelated)] == [1]
    assert listed(worker, third, 1, 3) == rows[1:4]
    assert listed(worker, third, 5) == listed(worker, "sha256:" + "0" * 64) == []


@pytest.mark.rule("R22", "R46")
def test_r22_pruned_receipts_leave_a_gap_in_the_numbers(
    database: Database, keys: Keys, worker: Worker
) -> None:
    root = ""
    for _ in range(3):
        root, _ = write(worker, 2, root)
    age_receipts(database, RESOURCE)
    prune(database, keys, 3)
    assert [row[:3] for row in listed(worker, root)] == [(4, 2, 2), (5, 3, 1), (6, 3, 2)]


@pytest.mark.rule("R47")
def test_r47_only_what_is_neither_here_nor_pruned_is_missing(
    database: Database, keys: Keys, worker: Worker
) -> None:
    first, one = write(worker, 2)
    second, two = write(worker, 2, first)
    known = [(first, v.segment_seq, v.receipt) for v in one]
    known += [(second, v.segment_seq, v.receipt) for v in two]
    assert missing(worker, *known) == []
    lost = [(second, 3, "cd" * 32), ("sha256:" + "0" * 64, 1, "ef" * 32), (second, 2, "ab" * 32)]
    assert missing(worker, *lost, *known) == ["cd" * 32, "ef" * 32, "ab" * 32]
    assert missing(worker) == []

    age_receipts(database, RESOURCE)
    prune(database, keys, 2)
    assert missing(worker, *known[:2]) == []
    assert missing(worker, (first, 3, "ab" * 32)) == ["ab" * 32]
