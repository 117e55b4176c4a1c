"""fenced_apply() and advance(): one test for each verdict, in the order of the contract."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.support import Database, Keys, sign_pending
from tests.workers import (
    Worker,
    as_owner,
    end_lease,
    fence_row,
    forge,
    grant_of,
    status_proof,
)

RESOURCE = "invoice-batch/2026-07-19"


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture
def rival(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_b")


def make_registry_distant(database: Database) -> None:
    as_owner(database, "update pgfence.configuration set registry_is_local = false")


def test_r15_first_segment_is_accepted_and_raises_the_fence(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    verdict = worker.apply(held.token, 1)
    assert (verdict.verdict, verdict.fence_token, verdict.last_segment) == ("ACCEPTED", 1, 1)
    row = fence_row(database, RESOURCE)
    assert (row.highest_fence, row.last_segment, row.receipt_count) == (1, 1, 1)
    assert row.operation_root == grant_of(held.token).operation_root


def test_r15_rollback_leaves_no_fence_and_no_receipt(worker: Worker, database: Database) -> None:
    held = worker.acquire(RESOURCE)
    worker.conn.execute("begin")
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    worker.conn.execute("rollback")
    assert fence_row(database, RESOURCE).highest_fence == 0
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"


@pytest.mark.parametrize(
    ("token", "segment", "payload"),
    [(None, 1, ""), ("x", None, ""), ("x", 1, None), ("x", 0, ""), ("x", -1, "")],
)
def test_r5_null_or_segment_below_one_is_a_clear_error(
    worker: Worker, token: Any, segment: Any, payload: Any
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        worker.apply(token, segment, payload)
    assert caught.value.sqlstate == "PF301"
    assert caught.value.diag.message_hint


def test_r5_what_is_no_token_is_malformed(worker: Worker) -> None:
    assert worker.apply("v4.public.nonsense", 1).verdict == "MALFORMED"


def test_r5_another_key_is_unknown_and_another_purpose_too(worker: Worker, keys: Keys) -> None:
    held = worker.acquire(RESOURCE)
    by_status_key = forge(grant_of(held.token), replace(keys, grant=keys.status))
    assert worker.apply(by_status_key, 1).verdict == "UNKNOWN_KEY"
    proof = status_proof(held.grant_digest, keys, grant_of(held.token).issued_at)
    assert worker.apply(proof, 1).verdict == "UNKNOWN_KEY"


def test_r5_changed_byte_of_the_message_is_a_bad_signature(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    at = len("v4.public.") + 40
    changed = held.token[:at] + ("A" if held.token[at] != "A" else "B") + held.token[at + 1 :]
    assert worker.apply(changed, 1).verdict == "BAD_SIGNATURE"
    assert fence_row(database, RESOURCE).highest_fence == 0


def test_r4_verified_message_with_another_signature_is_refused_after_acceptance(
    worker: Worker,
) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    header, purpose, body, footer = held.token.split(".")
    position = len(body) - 10  # in the signature
    other = body[:position] + ("A" if body[position] != "A" else "B") + body[position + 1 :]
    assert worker.apply(f"{header}.{purpose}.{other}.{footer}", 2).verdict == "BAD_SIGNATURE"


def test_r4_end_of_the_key_is_looked_at_although_the_grant_was_verified(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    as_owner(database, "update pgfence.trust_keys set expires_at = clock_timestamp()")
    as_owner(database, "update pgfence.operations set key_expires_at = clock_timestamp()")
    as_owner(database, "update pgfence.fences set checked_until = clock_timestamp()")
    assert worker.apply(held.token, 2).verdict == "UNKNOWN_KEY"


def test_r5_grant_for_another_database_has_the_wrong_audience(worker: Worker, keys: Keys) -> None:
    held = worker.acquire(RESOURCE)
    elsewhere = forge(grant_of(held.token), keys, audience="payroll")
    assert worker.apply(elsewhere, 1).verdict == "WRONG_AUDIENCE"


def test_r6_grant_of_another_workload_is_refused(worker: Worker, rival: Worker) -> None:
    held = worker.acquire(RESOURCE)
    assert rival.apply(held.token, 1).verdict == "NOT_OWNER"


def test_r6_set_role_settings_and_application_name_do_not_make_an_owner(
    worker: Worker, rival: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    with psycopg.connect(database.dsn(), autocommit=True) as superuser:
        superuser.execute("grant worker_a to worker_b")
    try:
        rival.conn.execute("set application_name = 'worker_a'")
        rival.conn.execute("set pgfence.workload = 'worker-a'")
        rival.conn.execute("set role worker_a")
        assert rival.apply(held.token, 1).verdict == "NOT_OWNER"
    finally:
        with psycopg.connect(database.dsn(), autocommit=True) as superuser:
            superuser.execute("revoke worker_a from worker_b")


def test_r7_epoch_below_the_lowest_good_one_is_revoked(worker: Worker, database: Database) -> None:
    held = worker.acquire(RESOURCE)
    as_owner(database, "update pgfence.configuration set epoch_floor = 2")
    assert worker.apply(held.token, 1).verdict == "REVOKED_EPOCH"


def test_r39_database_that_is_a_copy_answers_rebind_and_the_next_acquire_heals_it(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE, ttl_ms=60_000)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    as_owner(database, "update pgfence.configuration set timeline = '0000FFFF'")
    assert worker.apply(held.token, 2).verdict == "REBIND_REQUIRED"
    worker.release(held.lease)
    again = worker.acquire(RESOURCE)
    assert again.fence_token > 2**32
    assert worker.apply(held.token, 2).verdict == "REVOKED_EPOCH"
    assert worker.apply(again.token, 1).verdict == "ACCEPTED"


def test_r8_grant_of_an_old_policy_generation_is_stale(worker: Worker, database: Database) -> None:
    held = worker.acquire(RESOURCE)
    as_owner(database, "select pgfence.set_policy('invoice-batch/', array['settle'])")
    assert worker.apply(held.token, 1).verdict == "STALE_POLICY"


def test_r8_operation_class_that_the_policy_does_not_list_is_refused(
    worker: Worker, database: Database, keys: Keys
) -> None:
    as_owner(database, "select pgfence.set_policy('invoice-batch/', array['settle'])")
    with pytest.raises(psycopg.Error) as caught:
        worker.ask(RESOURCE, operation="purge")
    assert caught.value.sqlstate == "PF109"
    held = worker.acquire(RESOURCE)
    other = forge(grant_of(held.token), keys, operation_class="purge")
    assert worker.apply(other, 1).verdict == "WRONG_OPERATION"


def test_r8_paused_resource_refuses_its_owner_and_issues_nothing(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    as_owner(database, "update pgfence.fences set paused_because = 'an operator said so'")
    verdict = worker.apply(held.token, 1)
    assert verdict.verdict == "PAUSED"
    assert "an operator said so" in verdict.explanation
    with pytest.raises(psycopg.Error) as caught:
        worker.ask(RESOURCE)
    assert caught.value.sqlstate == "PF110"


def test_r10_lower_fence_than_the_highest_is_a_stale_owner(
    worker: Worker, rival: Worker, database: Database
) -> None:
    old = worker.acquire(RESOURCE)
    assert worker.apply(old.token, 1).verdict == "ACCEPTED"
    end_lease(database, old.lease)
    new = rival.acquire(RESOURCE)
    assert rival.apply(new.token, 1).verdict == "ACCEPTED"
    verdict = worker.apply(old.token, 2)
    assert (verdict.verdict, verdict.highest_fence) == ("STALE_OWNER", new.fence_token)
    assert "worker-b" in verdict.explanation


def test_r10_lower_fence_issued_later_is_a_regression_and_pauses_the_resource(
    worker: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    make_registry_distant(database)
    grant = grant_of(held.token)
    high = forge(grant, keys, fence_token=1000, status_until=grant.issued_at + 60_000_000)
    assert worker.apply(high, 1).verdict == "ACCEPTED"
    later = replace(
        grant,
        fence_token=400,
        issued_at=grant.issued_at + 1,
        status_until=grant.issued_at + 60_000_000,
        request_id="later",
        operation_root="sha256:" + "5" * 64,
    )
    verdict = worker.apply(forge(later, keys), 1)
    assert verdict.verdict == "FENCE_REGRESSION"
    assert "400" in verdict.explanation
    assert "1000" in verdict.explanation
    row = fence_row(database, RESOURCE)
    assert row.highest_fence == 1000
    assert row.paused_because is not None
    assert worker.apply(high, 2).verdict == "PAUSED"


def test_r11_same_fence_with_another_root_is_a_mismatch_with_the_same_root_an_equivocation(
    worker: Worker, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    grant = grant_of(held.token)
    other_root = forge(grant, keys, operation_root="sha256:" + "5" * 64)
    assert worker.apply(other_root, 2).verdict == "ROOT_MISMATCH"
    assert worker.apply(forge(grant, keys, lease="lease-other"), 2).verdict == "EQUIVOCATION"


def test_r11_root_that_was_used_under_an_earlier_fence_is_refused(
    worker: Worker, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    higher = forge(grant_of(held.token), keys, fence_token=held.fence_token + 1)
    assert worker.apply(higher, 1).verdict == "ROOT_MISMATCH"


def test_r12_same_segment_and_payload_is_replayed_with_the_original_receipt(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    first = worker.apply(held.token, 1, "page 1")
    end_lease(database, held.lease)
    again = worker.apply(held.token, 1, "page 1")
    assert again.verdict == "REPLAYED"
    assert (again.receipt, again.accepted_at) == (first.receipt, first.accepted_at)
    assert fence_row(database, RESOURCE).receipt_count == 1


def test_r12_same_segment_with_another_payload_is_quarantined_with_both_digests(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    first = worker.apply(held.token, 1, "page 1")
    for _ in range(2):
        assert worker.apply(held.token, 1, "another page 1").verdict == "PAYLOAD_CONFLICT"
    with psycopg.connect(database.dsn("auditor")) as auditor:
        rows = auditor.execute(
            "select encode(accepted_digest, 'hex'), encode(offered_digest, 'hex')"
            " from pgfence.quarantined_segments"
        ).fetchall()
    assert len(rows) == 1
    assert rows[0][0] == first.payload_digest != rows[0][1]
    assert fence_row(database, RESOURCE).last_segment == 1


def test_r12_quarantine_of_one_segment_is_bounded(worker: Worker, database: Database) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1, "page 1")
    for number in range(20):
        assert worker.apply(held.token, 1, f"other {number}").verdict == "PAYLOAD_CONFLICT"
    with psycopg.connect(database.dsn("auditor")) as auditor:
        (count,) = auditor.execute("select count(*) from pgfence.quarantined_segments").fetchone()  # type: ignore[misc]
    assert count == 16


def test_r39_lease_of_before_a_restore_keeps_nobody_waiting(
    worker: Worker, rival: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    assert rival.ask(RESOURCE, "next").state == "WAIT"
    as_owner(database, "update pgfence.configuration set timeline = 'copied'")
    new = rival.acquire(RESOURCE, "next")
    assert new.fence_token > held.fence_token + 2**32
    assert worker.look(held.lease).state == "SUPERSEDED"
    assert rival.apply(new.token, 1).verdict == "ACCEPTED"


@pytest.mark.parametrize("ending", ["EXPIRED", "RELEASED", "SUPERSEDED", "UNKNOWN_GRANT"])
def test_r13_grant_that_is_not_held_now_is_refused_with_the_reason(
    worker: Worker, rival: Worker, database: Database, keys: Keys, ending: str
) -> None:
    held = worker.acquire(RESOURCE)
    token = held.token
    if ending == "EXPIRED":
        end_lease(database, held.lease)
    elif ending == "RELEASED":
        assert worker.release(held.lease).state == "RELEASED"
    elif ending == "SUPERSEDED":
        end_lease(database, held.lease)
        assert rival.acquire(RESOURCE).state == "HELD"
    else:
        token = forge(grant_of(token), keys, lease="lease-never-issued")
    verdict = worker.apply(token, 1)
    assert (verdict.verdict, verdict.reason) == ("NOT_HELD", ending)


def test_r13_distant_registry_needs_a_status_proof_for_this_grant_whose_window_holds(
    worker: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    make_registry_distant(database)
    grant = grant_of(held.token)
    old = forge(grant, keys, status_until=grant.issued_at)
    digest = grant_of(old).digest
    assert worker.apply(old, 1).verdict == "STALE_STATUS"
    stale = status_proof(digest, keys, grant.issued_at - 60_000_000)
    assert worker.apply(old, 1, status=stale).verdict == "STALE_STATUS"
    ahead = status_proof(digest, keys, grant.issued_at + 60_000_000)
    assert worker.apply(old, 1, status=ahead).verdict == "STALE_STATUS"
    of_another = status_proof("0" * 64, keys, grant.issued_at)
    assert worker.apply(old, 1, status=of_another).verdict == "STALE_STATUS"
    elsewhere = status_proof(digest, keys, grant.issued_at, audience="payroll")
    assert worker.apply(old, 1, status=elsewhere).verdict == "WRONG_AUDIENCE"
    assert worker.apply(old, 1, status=old).verdict == "UNKNOWN_KEY"
    good = status_proof(digest, keys, grant.issued_at)
    assert worker.apply(old, 1, status=good).verdict == "ACCEPTED"


def test_r14_jump_beyond_the_step_of_the_policy_is_refused(
    worker: Worker, database: Database, keys: Keys
) -> None:
    grant = grant_of(worker.acquire(RESOURCE).token)
    make_registry_distant(database)
    beyond = forge(grant, keys, fence_token=2**40 + 1)
    assert worker.apply(beyond, 1).verdict == "FENCE_STEP"
    assert worker.apply(forge(grant, keys, fence_token=2**40), 1).verdict == "ACCEPTED"


def test_r14_segments_come_without_a_gap_and_a_new_fence_begins_at_one(
    worker: Worker, rival: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 2).verdict == "SEGMENT_GAP"
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    assert worker.apply(held.token, 3).verdict == "SEGMENT_GAP"
    worker.release(held.lease)
    new = rival.acquire(RESOURCE)
    assert rival.apply(new.token, 2).verdict == "SEGMENT_GAP"
    assert rival.apply(new.token, 1).verdict == "ACCEPTED"


def test_r16_no_refusal_changes_the_highest_fence(
    worker: Worker, rival: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    before = fence_row(database, RESOURCE)
    grant = grant_of(held.token)
    attempts = [
        worker.apply("garbage", 2),
        worker.apply(forge(grant, keys, fence_token=2**53 - 1), 2),
        worker.apply(forge(grant, keys, fence_token=9, operation_root="sha256:" + "5" * 64), 1),
        worker.apply(held.token, 7),
        worker.apply(held.token, 1, "other"),
        rival.apply(held.token, 2),
    ]
    assert all(attempt.verdict not in ("ACCEPTED", "REPLAYED", "ADVANCED") for attempt in attempts)
    assert fence_row(database, RESOURCE) == before


def test_r21_advance_raises_the_fence_once_and_admits_nothing(
    worker: Worker, rival: Worker, database: Database
) -> None:
    old = worker.acquire(RESOURCE)
    worker.apply(old.token, 1)
    end_lease(database, old.lease)
    new = rival.acquire(RESOURCE)
    for _ in range(2):
        verdict = rival.advance(new.token)
        assert (verdict.verdict, verdict.last_segment) == ("ADVANCED", 0)
    row = fence_row(database, RESOURCE)
    assert (row.highest_fence, row.receipt_count) == (new.fence_token, 1)
    assert worker.apply(old.token, 2).verdict == "STALE_OWNER"
    assert rival.apply(new.token, 1).verdict == "ACCEPTED"
    assert rival.advance(new.token).last_segment == 1


def test_require_raises_a_refusal_and_returns_an_acceptance(worker: Worker) -> None:
    held = worker.acquire(RESOURCE)
    require = "select (pgfence.require(pgfence.fenced_apply(%s, %s, 'x'))).verdict"
    assert worker.call(require, [held.token, 1]).verdict == "ACCEPTED"
    with pytest.raises(psycopg.Error) as caught:
        worker.call(require, [held.token, 5])
    assert caught.value.sqlstate == "PF119"
    assert "segment 5" in str(caught.value)
    with pytest.raises(psycopg.Error) as caught:
        worker.call("select pgfence.require(null)")
    assert caught.value.sqlstate == "PF301"


def test_r37_signed_grants_stand_in_the_registry_word_for_word(
    worker: Worker, database: Database
) -> None:
    answer = worker.ask(RESOURCE)
    assert answer.state == "SIGNING"
    sign_pending(database)
    held = worker.ask(RESOURCE, answer.request_id)
    grant = grant_of(held.token)
    assert grant.digest == held.grant_digest
    assert (grant.owner, grant.resource, grant.fence_token) == ("worker-a", RESOURCE, 1)
