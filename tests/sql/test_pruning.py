"""Receipts over time: what may be pruned, what stays, and what the chain shows afterwards (R22)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support import Database, Keys
from tests.workers import Worker, age_receipts, as_owner, forge, grant_of

RESOURCE = "invoice-batch/2026-07-19"


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture
def dba(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "dba")


def own(worker: Worker, *segments: int, resource: str = RESOURCE, **arguments: Any) -> Any:
    """The grant of one owner after the other: it writes its segments, and lets go."""
    held = worker.acquire(resource, **arguments)
    worker.advance(held.token)
    for segment in segments:
        assert worker.apply(held.token, segment).verdict == "ACCEPTED"
    worker.release(held.lease)
    return held


def prune(dba: Worker, limit: int = 10_000, resource: str = RESOURCE) -> Any:
    return dba.call("select * from pgfence.prune_receipts(%s, '1 hour', %s)", [resource, limit])


def verify(worker: Worker, resource: str = RESOURCE) -> Any:
    return worker.call("select * from pgfence.verify_receipts(%s)", [resource])


def test_r22_old_receipts_of_superseded_fences_go_and_the_chain_verifies(
    database: Database, worker: Worker, dba: Worker
) -> None:
    for _ in range(3):
        own(worker, 1, 2)
    age_receipts(database, RESOURCE)
    assert (verify(worker).receipts, verify(worker).pruned) == (6, 0)
    gone = prune(dba)
    assert (gone.receipts, gone.from_fence, gone.from_segment, gone.to_fence, gone.to_segment) == (
        4, 1, 1, 2, 2,
    )  # fmt: skip
    found = verify(worker)
    assert (found.ok, found.receipts, found.pruned, found.problem) == (True, 2, 4, None)
    row = dba.call("select pruned_by, previous_digest from pgfence.pruned_stretches")
    assert (row.pruned_by, row.previous_digest) == ("dba", b"")
    assert prune(dba).receipts == 0


def test_r22_receipts_of_the_present_fence_stay_whatever_their_age(
    database: Database, worker: Worker, dba: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    first = worker.apply(held.token, 1, "one")
    age_receipts(database, RESOURCE, hours=24 * 3650)
    assert prune(dba).receipts == 0
    assert worker.apply(held.token, 1, "one").verdict == "REPLAYED"
    assert worker.apply(held.token, 2).verdict == "ACCEPTED"
    assert first.verdict == "ACCEPTED"
    assert verify(worker).ok


def test_r22_receipts_within_the_retention_stay(
    database: Database, worker: Worker, dba: Worker
) -> None:
    own(worker, 1, 2, 3)
    own(worker, 1)
    age_receipts(database, RESOURCE, last=(1, 2))
    assert (prune(dba).receipts, prune(dba).receipts) == (2, 0)
    kept = dba.conn.execute("select fence_token, segment_seq from pgfence.receipts").fetchall()
    assert sorted(kept) == [(1, 3), (2, 1)]
    assert verify(worker).ok


@pytest.mark.parametrize("retention", ["0", "59 minutes", "-1 day", None])
def test_r45_retention_below_an_hour_is_refused(dba: Worker, retention: str | None) -> None:
    for query in ("prune_receipts('x', %s)", "prunable_receipts(%s)"):
        with pytest.raises(psycopg.Error) as refused:
            dba.call(f"select * from pgfence.{query}", [retention])
        assert refused.value.sqlstate == "PF301"


def test_r22_a_grant_of_a_pruned_fence_is_stale_and_replays_nothing(
    database: Database, worker: Worker, dba: Worker
) -> None:
    old = own(worker, 1)
    own(worker, 1)
    before = worker.apply(old.token, 1).verdict
    age_receipts(database, RESOURCE)
    assert prune(dba).receipts == 1
    assert (before, worker.apply(old.token, 1).verdict) == ("STALE_OWNER", "STALE_OWNER")


def test_r11_root_of_a_pruned_operation_is_never_used_again(
    database: Database, keys: Keys, worker: Worker, dba: Worker
) -> None:
    old = own(worker, 1, request_id="the-same")
    present = grant_of(own(worker, 1).token)
    age_receipts(database, RESOURCE)
    assert prune(dba).receipts == 1
    operations = dba.conn.execute("select pruned_segments from pgfence.operations order by 1")
    assert operations.fetchall() == [(0,), (1,)]
    # R34: the same request ID is answered with the same grant, which has had its day
    assert worker.ask(RESOURCE, "the-same").state == "RELEASED"
    root = grant_of(old.token).operation_root
    again = forge(present, keys, fence_token=present.fence_token + 1, operation_root=root)
    assert worker.apply(again, 1).verdict == "ROOT_MISMATCH"


def test_r22_chain_goes_on_over_fences_without_receipts(
    database: Database, worker: Worker, dba: Worker
) -> None:
    own(worker, 1, 2)
    own(worker)
    age_receipts(database, RESOURCE)
    assert prune(dba).receipts == 2
    assert verify(worker).ok
    own(worker)
    assert verify(worker).ok
    own(worker, 1)
    found = verify(worker)
    assert (found.ok, found.receipts, found.pruned) == (True, 1, 2)


def test_position_counts_the_segments_that_were_pruned(
    database: Database, worker: Worker, dba: Worker
) -> None:
    first = own(worker, 1, 2, 3)
    root = grant_of(first.token).operation_root
    own(worker, 1, continues_root=root)
    count = "select total_segments from pgfence.position(%s)"
    assert worker.call(count, [RESOURCE]).total_segments == 4
    age_receipts(database, RESOURCE)
    prune(dba, limit=2)
    assert worker.call(count, [RESOURCE]).total_segments == 4
    prune(dba)
    assert worker.call(count, [RESOURCE]).total_segments == 4


def test_r45_pruned_receipt_is_told_from_one_that_never_was(
    database: Database, worker: Worker, dba: Worker
) -> None:
    root = grant_of(own(worker, 1, 2).token).operation_root
    own(worker, 1)
    age_receipts(database, RESOURCE)

    def pruned(segment: int, of: str = root) -> Any:
        ask = "select pgfence.receipt_was_pruned(%s, %s, %s) as pruned"
        return worker.call(ask, [RESOURCE, of, segment]).pruned

    assert [pruned(segment) for segment in (1, 2)] == [False, False]
    prune(dba)
    assert [pruned(segment) for segment in (0, 1, 2, 3)] == [False, True, True, False]
    assert pruned(1, "sha256:" + "0" * 64) is False


def test_r22_broken_chain_is_not_pruned(database: Database, worker: Worker, dba: Worker) -> None:
    own(worker, 1, 2, 3)
    own(worker, 1)
    age_receipts(database, RESOURCE)
    as_owner(database, "update pgfence.receipts set session_role = 'x' where segment_seq = 3")
    refused = prune(dba)
    assert (refused.receipts, refused.problem) == (
        0,
        "not pruned: fence 1, segment 3: its contents do not give its digest",
    )
    assert dba.call("select count(*) as n from pgfence.receipts").n == 4
    assert not verify(worker).ok


def test_r22_pruning_in_batches_leaves_one_chain(
    database: Database, worker: Worker, dba: Worker
) -> None:
    for _ in range(3):
        own(worker, 1, 2, 3)
    age_receipts(database, RESOURCE)
    (whole,) = dba.conn.execute(
        "select receipts, to_fence, to_segment from pgfence.prunable_receipts('1 hour')"
    ).fetchall()
    assert whole == (6, 2, 3)
    assert [prune(dba, limit=4).receipts for _ in range(3)] == [4, 2, 0]
    assert dba.call("select count(*) as n from pgfence.pruned_stretches").n == 2
    found = verify(worker)
    assert (found.ok, found.receipts, found.pruned) == (True, 3, 6)


def test_r22_pruning_waits_for_no_open_segment_and_holds_up_none(
    database: Database, keys: Keys, worker: Worker
) -> None:
    own(worker, 1)
    age_receipts(database, RESOURCE)
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    dba = Worker.login(database, keys, "dba", options="-c lock_timeout=10s")
    hasty = Worker.login(database, keys, "worker_a", options="-c lock_timeout=10s")
    worker.conn.execute("begin")
    worker.apply(held.token, 2)
    dba.conn.execute("begin")
    assert prune(dba).receipts == 1
    worker.conn.execute("commit")
    assert hasty.apply(held.token, 3).verdict == "ACCEPTED"
    assert verify(worker).ok
    dba.conn.execute("commit")
    assert verify(worker).ok


def test_r22_fence_that_an_open_transaction_raises_is_not_superseded_yet(
    database: Database, worker: Worker, dba: Worker
) -> None:
    own(worker, 1)
    age_receipts(database, RESOURCE)
    held = worker.acquire(RESOURCE)
    worker.conn.execute("begin")
    worker.apply(held.token, 1)
    assert prune(dba).receipts == 0
    worker.conn.execute("commit")
    assert prune(dba).receipts == 1
    assert verify(worker).ok


def test_r22_one_session_prunes_at_a_time(database: Database, worker: Worker, dba: Worker) -> None:
    own(worker, 1)
    own(worker, 1)
    age_receipts(database, RESOURCE)
    dba.conn.execute("begin")
    assert prune(dba).receipts == 1
    with psycopg.connect(database.dsn("dba"), options="-c lock_timeout=100ms") as other:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("select pgfence.prune_receipts(%s, '1 hour')", [RESOURCE])
        other.rollback()
        dba.conn.execute("commit")
        row = other.execute(
            "select receipts from pgfence.prune_receipts(%s, '1 hour')", [RESOURCE]
        ).fetchone()
    assert row == (0,)


@pytest.mark.parametrize("role", ["worker_a", "auditor", "registry", "outsider"])
def test_r26_only_members_of_the_owner_prune(database: Database, role: str) -> None:
    as_owner(database, "grant execute on function pgfence.prune_receipts to public")  # a lost ACL
    as_owner(database, "grant usage on schema pgfence to public")
    conn = database.connect(role)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="no member of pgfence_owner"):
        conn.execute("select pgfence.prune_receipts('x', '1 hour')")


@pytest.mark.parametrize(
    "change",
    [
        "delete from {}",
        "update {} set receipts = 9",
        "truncate {}",
        "update {} set receipts = 9 where false",
    ],
)
def test_r22_pruned_stretches_are_only_added_to_also_for_the_owner(
    database: Database, change: str
) -> None:
    with pytest.raises(psycopg.Error) as refused:
        as_owner(database, change.format("pgfence.pruned_stretches"))
    assert refused.value.sqlstate == "PF204"
