"""Nobody knew whether it had happened, as others have met it, and what happens here.

docs/scenarios.md has the reports.
"""

from __future__ import annotations

import psycopg
import pytest

import pgfence
from pgfence import reconcile as process
from pgfence.reconcile import Answer, Handler, Says, Unknown
from tests.guarded import refused
from tests.proxy import proxy_to
from tests.registry import registry
from tests.scenarios.conftest import RESOURCE, Results
from tests.sql.test_reconcile import DIGEST, answer, reconcile, report
from tests.support import wait_until_blocked
from tests.workers import end_lease, in_background


@pytest.mark.rule("R44")
def test_vitess_2085_pgjdbc_2197_five_lost_acknowledgements_are_one_row_and_one_receipt(
    results: Results,
) -> None:
    """Each time a new process asks, with nothing but the coordinates that the first one kept."""
    database = results.database
    ran: list[str] = []

    def write(tx: psycopg.Connection[object]) -> None:
        tx.execute("insert into results values (%s, 'paid')", [RESOURCE])
        ran.append("paid")

    with registry(database, results.keys), proxy_to(database.dsn("worker_a")) as proxy:
        with (
            pgfence.connect(proxy.dsn) as fence,
            fence.hold(RESOURCE, operation="settle", ttl=60, request_id="nightly") as lease,
        ):
            proxy.lose_reply_to_commit()
            with pytest.raises(pgfence.MutationUnknownError) as caught:
                lease.apply({"pay": 1}, write)
            receipts = set()
            for _ in range(4):
                proxy.lose_reply_to_commit()
                receipts.add(lease.apply({"pay": 1}, write, segment=1).digest)
        with pgfence.connect(database.dsn("worker_a")) as later:
            outcome = later.reconcile(caught.value.coordinates)
    assert outcome.receipt is not None
    assert receipts == {outcome.receipt.digest}
    assert ran == ["paid"]
    assert results.rows() == [("paid", "worker_a")]
    assert results.receipts() == [(1, 1)]


@pytest.mark.rule("R45")
def test_river_1302_a_rescuer_with_an_old_picture_does_not_overrule_the_commit(
    results: Results,
) -> None:
    worker, rescuer = results.worker("worker_a"), results.worker("dba")
    held = worker.acquire(RESOURCE)
    report(worker, held.token)
    looked = reconcile(rescuer, held.token)
    assert (looked.outcome, looked.reason) == ("UNRESOLVED", "LEASE_HELD")
    # The worker comes back and completes the job; the rescuer decides on what it has seen.
    assert results.write(worker, held.token, 1, "payload") == "ACCEPTED"
    with refused("PF307") as error:
        answer(rescuer, held.token, "NOT_APPLIED")
    assert "its receipt stands" in str(error)
    assert reconcile(rescuer, held.token).outcome == "ACCEPTED"
    assert results.rows() == [("payload", "worker_a")]


@pytest.mark.rule("R45")
def test_river_1302_a_commit_that_comes_after_the_rescuer_has_decided_fails(
    results: Results,
) -> None:
    """The other way round, and even where the server's clock goes back behind the lease's end."""
    worker, rescuer = results.worker("worker_a"), results.worker("dba")
    held = worker.acquire(RESOURCE)
    report(worker, held.token)
    end_lease(results.database, held.lease)
    answer(rescuer, held.token, "NOT_APPLIED", evidence="the lease is over, and there is nothing")
    end_lease(results.database, held.lease, after=600)
    assert results.write(worker, held.token, 1, "late") == "NOT_HELD"
    assert (results.rows(), results.receipts()) == ([], [])


@pytest.mark.rule("R45")
def test_clevis_215_lion_reader_871_a_slow_job_that_was_reclaimed_is_told_apart_and_accounted_for(
    results: Results,
) -> None:
    """A is slow, B takes over and fails, A comes to its end: not applied, and what it may have
    done outside is said, for the domain to look at."""
    a, b = results.worker("worker_a"), results.worker("worker_b")
    held = a.acquire(RESOURCE)
    assert results.write(a, held.token, 1, "downloaded") == "ACCEPTED"
    end_lease(results.database, held.lease)
    newer = b.acquire(RESOURCE)
    b.advance(newer.token)
    b.release(newer.lease)  # it has failed
    assert results.write(a, held.token, 2, "published") == "STALE_OWNER"
    report(a, held.token, 2)

    told = reconcile(a, held.token, 2)
    assert told.outcome == "PROVEN_NOT_APPLIED"
    assert "what its work did outside this database is not undone" in told.explanation
    assert reconcile(a, held.token, 1, digest=None).outcome == "ACCEPTED"  # a success stays one

    asked: list[Unknown] = []

    def domain(unknown: Unknown) -> Answer:
        asked.append(unknown)
        return Answer(Says.NOT_APPLIED, "it was published twice, and taken back once by hand")

    with process.connected(results.database.dsn("dba")) as conn:
        done = process.reconcile(conn, [Handler("domain", domain)])
    # A's operation is half done and B has not taken it up: that is for the domain to say.
    assert [(u.kind, u.segment_seq, u.owner) for u in asked] == [("EXPIRED_LEASE", 2, "worker-a")]
    assert [one.outcome for one in done.settled] == ["NOT_APPLIED"]
    assert done.remaining == []
    assert results.rows() == [("downloaded", "worker_a")]


@pytest.mark.rule("R12", "R45")
def test_attendee_898_the_same_segment_twice_at_once_is_one_receipt_for_whoever_asks(
    results: Results,
) -> None:
    """A recording is delivered twice; whoever lost its answer finds the one that stands."""
    first, second = results.worker("worker_a"), results.worker("worker_a")
    held = first.acquire(RESOURCE)
    first.conn.execute("begin")
    assert first.apply(held.token, 1).verdict == "ACCEPTED"
    again = in_background(lambda: results.write(second, held.token, 1, "payload"))
    wait_until_blocked(results.database.connect(), second.pid)
    results.write_anyway(first, "the recording")
    first.conn.execute("commit")
    assert again.result() == "REPLAYED"
    found = reconcile(second, held.token, digest=DIGEST)
    assert found.outcome == "ACCEPTED"
    assert reconcile(second, held.token, digest="0" * 64).outcome == "PAYLOAD_CONFLICT"
    assert results.rows() == [("the recording", "worker_a")]
