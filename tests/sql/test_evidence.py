"""Receipts and their chain (R22), refusals (R18)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgfence.model.grant import operation_root
from tests.support import Database, Keys
from tests.workers import Worker, forge, grant_of

RESOURCE = "invoice-batch/2026-07-19"


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture
def rival(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_b")


def refusals(database: Database) -> list[Any]:
    with psycopg.connect(database.dsn("auditor")) as conn:
        return conn.execute(
            "select verdict, session_role, occurrences from pgfence.refusals"
            " where occurrences > 0 order by slot"
        ).fetchall()


@pytest.fixture
def chain(worker: Worker, rival: Worker) -> None:
    """Five receipts under two fences."""
    held = worker.acquire(RESOURCE)
    for segment in (1, 2, 3):
        worker.apply(held.token, segment, f"page {segment}")
    worker.release(held.lease)
    new = rival.acquire(RESOURCE)
    for segment in (1, 2):
        rival.apply(new.token, segment, f"page {segment}")


def verify(worker: Worker) -> Any:
    return worker.call("select * from pgfence.verify_receipts(%s)", [RESOURCE])


@pytest.mark.usefixtures("chain")
def test_r22_untouched_chain_verifies(worker: Worker) -> None:
    found = verify(worker)
    assert (found.ok, found.receipts, found.problem) == (True, 5, None)


@pytest.mark.usefixtures("chain")
@pytest.mark.parametrize(
    ("tampering", "bad"),
    [
        (
            (
                "update pgfence.receipts set payload_digest = sha256('forged')"
                " where fence_token = 1 and segment_seq = 2"
            ),
            (1, 2),
        ),
        (
            (
                "update pgfence.receipts set session_role = 'somebody'"
                " where fence_token = 2 and segment_seq = 1"
            ),
            (2, 1),
        ),
        (
            (
                "update pgfence.receipts set accepted_at = accepted_at - interval '1 second'"
                " where fence_token = 1 and segment_seq = 1"
            ),
            (1, 1),
        ),
        ("delete from pgfence.receipts where fence_token = 1 and segment_seq = 2", (1, 3)),
        ("delete from pgfence.receipts where fence_token = 1", (2, 1)),
        ("delete from pgfence.receipts where fence_token = 2 and segment_seq = 2", (2, 2)),
        ("delete from pgfence.receipts", (2, 2)),
        (
            (
                "update pgfence.receipts set digest = sha256('x'), previous_digest = ''"
                " where fence_token = 1 and segment_seq = 1"
            ),
            (1, 1),
        ),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_r22_edited_missing_or_cut_off_receipt_is_named(
    worker: Worker, database: Database, tampering: str, bad: tuple[int, int]
) -> None:
    with psycopg.connect(database.dsn()) as superuser:
        superuser.execute("set local session_replication_role = replica")
        superuser.execute("alter table pgfence.receipts disable trigger closed")
        superuser.execute(tampering)
        superuser.execute("alter table pgfence.receipts enable always trigger closed")
    found = verify(worker)
    assert not found.ok
    assert (found.first_bad_fence, found.first_bad_segment) == bad
    assert found.problem


def test_r22_resource_without_receipts_verifies(worker: Worker) -> None:
    assert verify(worker).ok


def test_r45_receipt_is_found_by_operation_id(worker: Worker) -> None:
    held = worker.acquire(RESOURCE, "request-1")
    accepted = worker.apply(held.token, 1)
    root = operation_root(RESOURCE, "settle", "request-1", "")
    find = "select encode(digest, 'hex') as digest from pgfence.find_receipt(%s, %s, %s)"
    assert worker.call(find, [RESOURCE, root, 1]).digest == accepted.receipt
    assert worker.call(find, [RESOURCE, root, 2]) is None


def test_r18_refusals_of_one_kind_are_counted_in_one_row(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    for _ in range(3):
        worker.apply(held.token, 5)
    assert refusals(database) == [("SEGMENT_GAP", "worker_a", 3)]


def test_r18_refusal_is_in_the_server_log_also_after_a_rollback(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire("logged-resource")
    worker.conn.execute("begin")
    worker.apply(held.token, 5)
    worker.conn.execute("rollback")
    assert refusals(database) == []
    line = "pgfence refused SEGMENT_GAP : session_role=worker_a resource=logged-resource"
    assert line in database.server.log()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_r18_outside_read_committed_a_refusal_never_ends_in_40001(
    worker: Worker, database: Database, level: str
) -> None:
    held = worker.acquire(RESOURCE)
    with worker.transaction(level):
        worker.conn.execute("select count(*) from pg_class")
        with psycopg.connect(database.dsn("worker_b")) as other:
            other.execute("select pgfence.fenced_apply('garbage', 1, '')")
        assert worker.apply(held.token, 5).verdict == "SEGMENT_GAP"
        assert worker.apply("garbage", 5).verdict == "MALFORMED"


def test_r18_flood_of_garbage_does_not_push_out_authenticated_evidence(
    worker: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 5)
    worker.conn.execute(
        "select pgfence.fenced_apply('v4.public.' || n, 1, '') from generate_series(1, 2000) as n"
    )
    assert ("SEGMENT_GAP", "worker_a", 1) in refusals(database)
    assert len(refusals(database)) == 2


def test_r18_rows_of_evidence_are_bounded_and_the_oldest_gives_way(
    worker: Worker, database: Database, keys: Keys
) -> None:
    grant = grant_of(worker.acquire(RESOURCE).token)
    for number in range(200):
        assert worker.apply(forge(grant, keys, lease=f"l-{number}"), 1).reason == "UNKNOWN_GRANT"
    assert len(refusals(database)) == 128
    with psycopg.connect(database.dsn("auditor")) as conn:
        assert conn.execute("select count(*) from pgfence.refusals").fetchone() == (1920,)
        newest = forge(grant, keys, lease="l-199")
        found = conn.execute(
            "select count(*) from pgfence.refusals where grant_digest = decode(%s, 'hex')",
            [grant_of(newest).digest],
        )
        assert found.fetchone() == (1,)


def test_r18_recording_passes_over_a_slot_that_another_transaction_holds(
    worker: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 5)
    second = Worker.login(database, keys, "worker_a", options="-c lock_timeout=1s")
    holder = database.connect(autocommit=False)
    holder.execute("set role pgfence_owner")
    holder.execute("select from pgfence.refusals where occurrences > 0 for update")
    assert second.apply("garbage", 1).verdict == "MALFORMED"
    assert second.apply(held.token, 5).verdict == "SEGMENT_GAP"
    holder.rollback()
    assert sorted(refusals(database)) == [
        ("MALFORMED", "worker_a", 1),
        ("SEGMENT_GAP", "worker_a", 1),
        ("SEGMENT_GAP", "worker_a", 1),
    ]


def test_position_counts_the_segments_of_all_owners_that_took_the_operation_up(
    worker: Worker, rival: Worker
) -> None:
    def total() -> int:
        row = worker.call("select total_segments from pgfence.position(%s)", [RESOURCE])
        return int(row.total_segments)

    root = ""
    for number, player in enumerate((worker, rival, worker)):
        held = player.acquire(RESOURCE, continues_root=root)
        assert player.advance(held.token).verdict == "ADVANCED"
        assert total() == 2 * number
        for segment in (1, 2):
            player.apply(held.token, segment)
        assert total() == 2 * number + 2
        root = grant_of(held.token).operation_root
        player.release(held.lease)
    unrelated = worker.acquire(RESOURCE)
    worker.apply(unrelated.token, 1)
    assert total() == 1
