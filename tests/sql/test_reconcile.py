"""What became of a segment whose COMMIT was not answered (R44, R45), in SQL."""

from __future__ import annotations

import hashlib
from typing import Any

import psycopg
import pytest

from tests.guarded import refused
from tests.rollout import shadow
from tests.support import AUDIENCE, Database, Keys, wait_until_blocked
from tests.workers import (
    Worker,
    age_receipts,
    as_owner,
    end_lease,
    fence_row,
    forge,
    grant_of,
    in_background,
)

RESOURCE = "invoice-batch/2026-07-19"
DIGEST = hashlib.sha256(b"payload").hexdigest()
OTHER_DIGEST = hashlib.sha256(b"another").hexdigest()


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture
def successor(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_b")


@pytest.fixture
def operator(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "dba")


def reconcile(
    by: Worker,
    token: str,
    segment: int = 1,
    *,
    digest: str | None = DIGEST,
    grant: str | None = None,
) -> Any:
    """Ask what became of a segment of the operation of `token`."""
    return by.call(
        "select * from pgfence.reconcile(%s, %s, %s, %s, %s)",
        [grant_of(token).resource, grant_of(token).operation_root, segment, digest, grant],
    )


def answer(
    by: Worker, token: str, says: str, segment: int = 1, evidence: str = "seen", handler: str = ""
) -> Any:
    claims = grant_of(token)
    return by.call(
        "select * from pgfence.answer_unknown(%s, %s, %s, %s, %s, %s)",
        [claims.resource, claims.operation_root, segment, says, evidence, handler],
    )


def report(by: Worker, token: str, segment: int = 1, digest: str = DIGEST) -> bool:
    row = by.call("select pgfence.report_unknown(%s, %s, %s) as noted", [token, segment, digest])
    return bool(row.noted)


def unknown(by: Worker) -> list[Any]:
    """kind, segment, outcome and reason of what is shown."""
    return by.conn.execute(
        "select kind, segment_seq, outcome, reason from pgfence.unknown_outcomes()"
    ).fetchall()


def take_over(successor: Worker, before: Any, **arguments: Any) -> Any:
    """End the lease of before, and acquire as the next owner."""
    end_lease(successor.database, before.lease)
    return successor.acquire(RESOURCE, **arguments)


# the outcomes, in the order in which R45 names them


def test_r45_found_is_accepted_and_the_receipt_is_reused(worker: Worker) -> None:
    held = worker.acquire(RESOURCE)
    verdict = worker.apply(held.token, 1)
    found = reconcile(worker, held.token)
    assert (found.outcome, found.reason) == ("ACCEPTED", None)
    assert (found.receipt, found.payload_digest, found.accepted_at) == (
        verdict.receipt,
        DIGEST,
        verdict.accepted_at,
    )
    assert (found.fence_token, found.owner) == (held.fence_token, "worker-a")


def test_r45_another_payload_is_a_conflict_and_not_the_same_segment(worker: Worker) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    found = reconcile(worker, held.token, digest=OTHER_DIGEST)
    assert found.outcome == "PAYLOAD_CONFLICT"
    assert DIGEST in found.explanation
    assert OTHER_DIGEST in found.explanation
    assert reconcile(worker, held.token, digest=None).outcome == "ACCEPTED"


def test_r45_absent_and_the_fence_has_moved_on_is_proven_not_applied(
    worker: Worker, successor: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    newer = take_over(successor, held)
    successor.apply(newer.token, 1)
    found = reconcile(worker, held.token, 2)
    assert (found.outcome, found.reason, found.ask) == ("PROVEN_NOT_APPLIED", None, None)
    assert "outside this database is not undone" in found.explanation
    assert reconcile(worker, held.token, 1).outcome == "ACCEPTED"


def test_r45_a_newer_grant_of_the_caller_raises_the_fence_and_proves_it_now(
    worker: Worker, successor: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    newer = take_over(successor, held)
    assert reconcile(worker, held.token, 2).reason == "LEASE_OVER"
    found = reconcile(successor, held.token, 2, grant=newer.token)
    assert found.outcome == "PROVEN_NOT_APPLIED"
    assert fence_row(worker.database, RESOURCE).highest_fence == newer.fence_token
    assert worker.apply(held.token, 2).verdict == "STALE_OWNER"


def test_r45_a_newer_grant_raises_nothing_where_the_receipt_stands(
    worker: Worker, successor: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    newer = take_over(successor, held)
    assert reconcile(successor, held.token, 1, grant=newer.token).outcome == "ACCEPTED"
    assert fence_row(worker.database, RESOURCE).highest_fence == held.fence_token


def test_r45_a_grant_that_is_refused_proves_nothing_and_it_says_why(
    database: Database, worker: Worker, successor: Worker, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    newer = take_over(successor, held)
    end_lease(database, newer.lease)
    found = reconcile(successor, held.token, 2, grant=newer.token)
    assert (found.outcome, found.reason) == ("UNRESOLVED", "GRANT_REFUSED")
    assert "NOT_HELD" in found.explanation
    forged = forge(grant_of(held.token), keys, fence_token=999)
    found = reconcile(worker, held.token, 2, grant=forged)
    assert (found.outcome, found.reason) == ("UNRESOLVED", "GRANT_REFUSED")
    found = reconcile(worker, held.token, 2, grant=newer.token[:-1])
    assert (found.outcome, found.reason) == ("UNRESOLVED", "GRANT_REFUSED")
    assert "MALFORMED" in found.explanation
    assert fence_row(database, RESOURCE).highest_fence == held.fence_token


def test_r45_while_the_lease_is_held_the_owner_decides(worker: Worker) -> None:
    held = worker.acquire(RESOURCE)
    found = reconcile(worker, held.token, grant=held.token)
    assert (found.outcome, found.reason) == ("UNRESOLVED", "LEASE_HELD")
    assert "worker-a" in found.ask
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"


def test_r45_a_pruned_stretch_is_not_taken_for_one_that_was_never_applied(
    database: Database, worker: Worker, operator: Worker
) -> None:
    first = worker.acquire(RESOURCE)
    worker.apply(first.token, 1)
    worker.release(first.lease)
    second = worker.acquire(RESOURCE)
    worker.apply(second.token, 1)
    age_receipts(database, RESOURCE)
    operator.call("select * from pgfence.prune_receipts(%s, '1 hour')", [RESOURCE])
    found = reconcile(worker, first.token)
    assert (found.outcome, found.reason) == ("UNRESOLVED", "PRUNED")
    assert "domain handler of workload worker-a" in found.ask
    assert reconcile(worker, first.token, 2).outcome == "PROVEN_NOT_APPLIED"


def test_r45_an_operation_that_nobody_knows_is_for_the_dba(worker: Worker) -> None:
    found = worker.call(
        "select * from pgfence.reconcile(%s, %s, 1)", [RESOURCE, f"sha256:{'0' * 64}"]
    )
    assert (found.outcome, found.reason) == ("UNRESOLVED", "UNKNOWN_OPERATION")
    assert "DBA" in found.ask


def test_r45_r28_what_was_in_shadow_may_have_been_written_without_a_receipt(
    database: Database, worker: Worker, successor: Worker, operator: Worker
) -> None:
    shadow(database, "invoice-batch/")
    held = worker.acquire(RESOURCE)
    newer = take_over(successor, held)
    successor.advance(newer.token)
    assert reconcile(worker, held.token).reason == "IN_SHADOW"
    operator.call("select pgfence.enforce('invoice-batch/')")
    assert reconcile(worker, held.token).reason == "IN_SHADOW"
    end_lease(database, newer.lease)
    after = worker.acquire(RESOURCE)
    worker.apply(after.token, 1)
    end_lease(database, after.lease)
    successor.advance(successor.acquire(RESOURCE).token)
    assert reconcile(worker, after.token, 2).outcome == "PROVEN_NOT_APPLIED"


# the decision holds


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_r45_reconciling_waits_for_the_commit_that_is_on_its_way(
    worker: Worker, operator: Worker, end: str
) -> None:
    held = worker.acquire(RESOURCE)
    worker.conn.execute("begin")
    worker.apply(held.token, 1)
    asked = in_background(lambda: reconcile(operator, held.token))
    wait_until_blocked(worker.database.connect(), operator.pid)
    worker.conn.execute(end)
    found = asked.result()
    assert found.outcome == ("ACCEPTED" if end == "commit" else "UNRESOLVED")


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_r45_no_commit_comes_after_what_was_proven(
    worker: Worker, successor: Worker, isolation: str
) -> None:
    """The old owner's transaction has an old snapshot; it applies after the decision."""
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    worker.conn.execute(f"begin isolation level {isolation}")
    worker.conn.execute("select 1 from pgfence.position('x')")
    newer = take_over(successor, held)
    assert reconcile(successor, held.token, 2, grant=newer.token).outcome == "PROVEN_NOT_APPLIED"
    if isolation == "read committed":
        assert worker.apply(held.token, 2).verdict == "STALE_OWNER"
        worker.conn.execute("commit")
    else:
        with refused("40001"):
            worker.apply(held.token, 2)
        worker.conn.execute("rollback")
    assert reconcile(worker, held.token, 2).outcome == "PROVEN_NOT_APPLIED"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_r45_an_old_snapshot_decides_nothing(
    worker: Worker, operator: Worker, isolation: str
) -> None:
    held = worker.acquire(RESOURCE)
    operator.conn.execute(f"begin isolation level {isolation}")
    operator.conn.execute("select 1 from pgfence.fences")
    worker.apply(held.token, 1)
    with pytest.raises(psycopg.errors.SerializationFailure):
        reconcile(operator, held.token)
    operator.conn.execute("rollback")


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_r45_who_asks_in_a_transaction_that_goes_on_holds_up_nobody(
    worker: Worker, operator: Worker, isolation: str
) -> None:
    held = worker.acquire(RESOURCE)
    worker.conn.execute("set lock_timeout = '20s'")
    operator.conn.execute(f"begin isolation level {isolation}")
    assert reconcile(operator, held.token).reason == "LEASE_HELD"
    assert answer(operator, held.token, "ASK_A_PERSON").reason == "LEASE_HELD"
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    operator.conn.execute("rollback")


def test_r20_a_past_owner_that_asks_or_answers_does_not_hold_up_its_successor(
    worker: Worker, successor: Worker
) -> None:
    """Its successor holds the resource, and has not written yet."""
    held = worker.acquire(RESOURCE)
    report(worker, held.token)
    newer = take_over(successor, held)
    successor.conn.execute("set lock_timeout = '20s'")
    worker.conn.execute("begin")
    assert reconcile(worker, held.token).reason == "LEASE_OVER"
    answer(worker, held.token, "NOT_APPLIED")
    assert successor.apply(newer.token, 1).verdict == "ACCEPTED"
    worker.conn.execute("rollback")


# who may ask


def test_r45_a_stranger_is_told_whom_to_ask_and_locks_nothing(
    worker: Worker, successor: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    worker.conn.execute("begin")
    worker.apply(held.token, 1)
    found = reconcile(successor, held.token)
    assert (found.outcome, found.reason, found.receipt) == ("UNRESOLVED", "NOT_YOURS", None)
    assert "worker-a" in found.ask
    worker.conn.execute("commit")
    own = successor.acquire("invoice-batch/2026-07-20")
    with refused("PF301"):
        reconcile(successor, held.token, grant=own.token)
    assert reconcile(successor, held.token).reason == "NOT_YOURS"


def test_r45_an_older_owner_s_grant_is_no_right_to_ask(worker: Worker, successor: Worker) -> None:
    older = successor.acquire(RESOURCE)
    successor.release(older.lease)
    held = worker.acquire(RESOURCE)
    assert reconcile(successor, held.token, grant=older.token).reason == "NOT_YOURS"


@pytest.mark.parametrize(
    ("audience", "reason"), [("payroll", "NOT_YOURS"), (AUDIENCE, "GRANT_REFUSED")]
)
def test_r45_a_newer_grant_for_another_database_is_no_right_to_ask(
    worker: Worker, successor: Worker, keys: Keys, audience: str, reason: str
) -> None:
    older = successor.acquire(RESOURCE)
    successor.release(older.lease)
    held = worker.acquire(RESOURCE)
    newer = forge(grant_of(older.token), keys, audience=audience, fence_token=held.fence_token + 1)
    assert reconcile(successor, held.token, grant=newer).reason == reason


@pytest.mark.parametrize("role", ["auditor", "registry"])
def test_r45_who_only_reads_does_not_reconcile(
    database: Database, worker: Worker, keys: Keys, role: str
) -> None:
    held = worker.acquire(RESOURCE)
    reader = Worker.login(database, keys, role)
    for call in (reconcile, report):
        with refused("42501"):
            call(reader, held.token)
    with refused("42501"):
        answer(reader, held.token, "APPLIED")


@pytest.mark.parametrize(
    "arguments",
    [
        [None, f"sha256:{'0' * 64}", 1, None],
        ["two words", f"sha256:{'0' * 64}", 1, None],
        [RESOURCE, None, 1, None],
        [RESOURCE, "0" * 64, 1, None],
        [RESOURCE, f"sha256:{'0' * 64}", 0, None],
        [RESOURCE, f"sha256:{'0' * 64}", None, None],
        [RESOURCE, f"sha256:{'0' * 64}", 1, "abc"],
    ],
)
def test_what_names_no_segment_is_refused(worker: Worker, arguments: list[Any]) -> None:
    with refused("PF301"):
        worker.call("select * from pgfence.reconcile(%s, %s, %s, %s)", arguments)


# what is unknown


def test_r44_a_report_is_shown_until_the_receipt_answers_it(
    worker: Worker, operator: Worker, successor: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    assert report(worker, held.token)
    assert report(worker, held.token)
    assert unknown(worker) == [("UNANSWERED_COMMIT", 1, "UNRESOLVED", "LEASE_HELD")]
    assert unknown(operator) == unknown(worker)
    assert unknown(successor) == []
    worker.apply(held.token, 1)
    assert unknown(worker) == [("UNANSWERED_COMMIT", 1, "ACCEPTED", None)]
    reconcile(operator, held.token, digest=None)
    assert unknown(worker) == []


def test_r45_the_reported_payload_counts_where_none_is_given(worker: Worker) -> None:
    held = worker.acquire(RESOURCE)
    report(worker, held.token, digest=OTHER_DIGEST)
    worker.apply(held.token, 1)
    assert reconcile(worker, held.token, digest=None).outcome == "PAYLOAD_CONFLICT"
    assert unknown(worker) == [("UNANSWERED_COMMIT", 1, "PAYLOAD_CONFLICT", None)]
    answer(worker, held.token, "NOT_APPLIED", evidence="two processes with one grant, see #17")
    assert unknown(worker) == []


def test_r44_a_report_needs_no_lease_and_waits_for_no_segment(
    database: Database, worker: Worker, successor: Worker, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    newer = take_over(successor, held)
    successor.conn.execute("begin")
    successor.apply(newer.token, 1)
    assert report(worker, held.token)
    successor.conn.execute("commit")
    assert unknown(Worker.login(database, keys, "auditor")) == [
        ("UNANSWERED_COMMIT", 1, "PROVEN_NOT_APPLIED", None)
    ]


def test_r44_only_the_owner_reports_and_only_with_a_genuine_grant(
    worker: Worker, successor: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    with refused("PF105"):
        report(successor, held.token)
    with refused("PF103"):
        report(worker, held.token.replace(held.token[60], "x" if held.token[60] != "x" else "y", 1))
    for arguments in ([None, 1, DIGEST], [held.token, 0, DIGEST], [held.token, 1, None]):
        with refused("PF301"):
            worker.call("select pgfence.report_unknown(%s, %s, %s)", arguments)
    assert unknown(worker) == []


def test_r44_no_worker_fills_the_table(worker: Worker) -> None:
    held = worker.acquire(RESOURCE)
    noted = [report(worker, held.token, segment) for segment in range(1, 70)]
    assert noted == [True] * 64 + [False] * 5


def test_r45_an_operation_whose_lease_ended_half_way_is_shown_until_it_is_taken_up(
    database: Database, worker: Worker, successor: Worker, operator: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    worker.apply(held.token, 2)
    assert unknown(operator) == []
    root = grant_of(held.token).operation_root
    newer = take_over(successor, held, continues_root=root)
    assert unknown(operator) == [("EXPIRED_LEASE", 3, "UNRESOLVED", "HALF_DONE")]
    successor.advance(newer.token)
    assert unknown(operator) == []
    end_lease(database, newer.lease)
    assert unknown(operator) == []  # it had not written


def test_r45_a_lease_that_was_released_leaves_nothing_to_ask(
    worker: Worker, operator: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    worker.release(held.lease)
    assert unknown(operator) == []


# what a handler or a person answers


@pytest.fixture
def abandoned(worker: Worker) -> Any:
    """A commit that was not answered, and whose lease is over."""
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    report(worker, held.token, 2)
    end_lease(worker.database, held.lease)
    return held


@pytest.mark.parametrize("says", ["APPLIED", "NOT_APPLIED"])
def test_r45_an_answer_settles_it_and_is_kept_with_who_said_it(
    worker: Worker, operator: Worker, abandoned: Any, says: str
) -> None:
    assert unknown(operator) == [("UNANSWERED_COMMIT", 2, "UNRESOLVED", "LEASE_OVER")]
    answer(worker, abandoned.token, says, 2, "invoice 17 was mailed", "billing:handler")
    assert unknown(operator) == []
    kept = operator.call("select * from pgfence.unknown_mutations")
    assert (kept.answer, kept.evidence, kept.handler, kept.answered_by) == (
        says,
        "invoice 17 was mailed",
        "billing:handler",
        "worker_a",
    )


def test_r45_a_handler_that_asks_a_person_settles_nothing(
    worker: Worker, operator: Worker, abandoned: Any
) -> None:
    answer(worker, abandoned.token, "ASK_A_PERSON", 2, "the bank has not answered", "billing:bank")
    row = operator.call("select * from pgfence.unknown_outcomes()")
    assert (row.answer, row.evidence, row.answered_by) == (
        "ASK_A_PERSON",
        "the bank has not answered",
        "worker_a",
    )
    answer(operator, abandoned.token, "NOT_APPLIED", 2, "the bank says no")
    assert unknown(operator) == []


@pytest.mark.parametrize(
    ("first", "other"),
    [("APPLIED", "NOT_APPLIED"), ("NOT_APPLIED", "APPLIED"), ("NOT_APPLIED", "ASK_A_PERSON")],
)
def test_r45_an_answer_is_kept_with_its_evidence_and_another_one_is_refused(
    worker: Worker, operator: Worker, abandoned: Any, first: str, other: str
) -> None:
    recorded = "select * from pgfence.unknown_mutations"
    auditor = Worker.login(worker.database, worker.keys, "auditor")
    answer(operator, abandoned.token, first, 2, "bank statement 17 shows it")
    kept = auditor.call(recorded)
    with pytest.raises(psycopg.Error, match=f"dba has answered {first}") as caught:
        answer(worker, abandoned.token, other, 2, "nothing")
    assert caught.value.sqlstate == "PF307"
    answer(worker, abandoned.token, first, 2, "nothing")
    assert auditor.call(recorded) == kept


def test_r45_not_applied_ends_the_lease_so_that_no_commit_comes_after_it(
    database: Database, worker: Worker, abandoned: Any
) -> None:
    """Also when the server's clock goes back, which is played here by the lease's end."""
    answer(worker, abandoned.token, "NOT_APPLIED", 2)
    end_lease(database, abandoned.lease, 600)
    verdict = worker.apply(abandoned.token, 2)
    assert (verdict.verdict, verdict.reason) == ("NOT_HELD", "SUPERSEDED")


def test_r45_a_control_without_the_answer_the_lease_would_come_back(
    database: Database, worker: Worker, abandoned: Any
) -> None:
    end_lease(database, abandoned.lease, 600)
    assert worker.apply(abandoned.token, 2).verdict == "ACCEPTED"


def test_r45_an_answer_against_a_receipt_or_a_proof_is_refused(
    worker: Worker, successor: Worker, operator: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    report(worker, held.token, 1)
    report(worker, held.token, 2)
    with refused("PF307"):
        answer(operator, held.token, "NOT_APPLIED", 1)
    for says in ("APPLIED", "NOT_APPLIED"):  # the lease is held: the owner may still commit
        with refused("PF307"):
            answer(operator, held.token, says, 2)
    successor.advance(take_over(successor, held).token)
    with refused("PF307"):
        answer(operator, held.token, "APPLIED", 2)


def test_r45_an_answer_while_the_lease_is_being_renewed_is_refused_and_nobody_waits(
    database: Database, worker: Worker, operator: Worker, abandoned: Any, keys: Keys
) -> None:
    end_lease(database, abandoned.lease, 600)
    renewing = Worker.login(database, keys, "worker_a")
    renewing.conn.execute("begin")
    assert renewing.renew(abandoned.lease).state == "HELD"
    with refused("PF307"):
        answer(operator, abandoned.token, "NOT_APPLIED", 2)
    renewing.conn.execute("commit")


def test_r45_only_the_workload_and_operators_answer_and_only_what_is_asked(
    worker: Worker, successor: Worker, abandoned: Any
) -> None:
    with refused("PF105"):
        answer(successor, abandoned.token, "NOT_APPLIED", 2)
    with refused("PF301"):
        answer(worker, abandoned.token, "NOT_APPLIED", 7)
    never_written = worker.acquire("invoice-batch/2026-07-20")
    end_lease(worker.database, never_written.lease)
    with refused("PF301"):
        answer(worker, never_written.token, "NOT_APPLIED", 7)
    with refused("PF301"):
        answer(worker, abandoned.token, "MAYBE", 2)
    with refused("PF301"):
        answer(worker, abandoned.token, "APPLIED", 2, evidence="")


def test_r45_a_half_done_operation_is_settled_by_an_answer(
    database: Database, worker: Worker, operator: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    end_lease(database, held.lease)
    assert unknown(operator) == [("EXPIRED_LEASE", 2, "UNRESOLVED", "HALF_DONE")]
    answer(operator, held.token, "APPLIED", 2, "one page was all there was")
    assert unknown(operator) == []


def test_r27_a_restore_that_lost_its_privileges_opens_nothing(
    database: Database, worker: Worker, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    report(worker, held.token, 2)
    as_owner(database, "grant execute on all functions in schema pgfence to public")
    as_owner(database, "grant usage on schema pgfence to public")
    outsider = Worker.login(database, keys, "outsider")
    assert reconcile(outsider, held.token).reason == "NOT_YOURS"
    assert unknown(outsider) == []
    for call in (report, lambda by, token: answer(by, token, "APPLIED", 2)):
        with refused("PF105"):
            call(outsider, held.token)
