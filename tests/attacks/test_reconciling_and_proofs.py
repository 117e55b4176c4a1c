"""A second workload, a past owner or an old snapshot makes reconcile, a report or a proof say what
is not so, or keeps others from a resource (R13, R20, R45)."""

from __future__ import annotations

import hashlib
from typing import Any

import psycopg
import pytest

from tests.elsewhere import Owner, use_registry_elsewhere
from tests.guarded import refused
from tests.rollout import enforce, shadow
from tests.support import Database, Keys, wait_until_blocked
from tests.workers import Worker, as_owner, end_lease, fence_row, grant_of, in_background

RESOURCE = "invoice-batch/2026-07-19"
DIGEST = hashlib.sha256(b"payload").hexdigest()
SNAPSHOT_LEVELS = ["repeatable read", "serializable"]
LEVELS = ["read committed", *SNAPSHOT_LEVELS]


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture
def successor(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_b")


@pytest.fixture
def registry(database: Database, registry_database: Database) -> Database:
    use_registry_elsewhere(database, registry_database, tolerance_ms=0)
    return registry_database


@pytest.fixture
def owner(database: Database, registry: Database, keys: Keys) -> Owner:
    return Owner.login(database, registry, keys, "worker_a")


@pytest.fixture
def rival(database: Database, registry: Database, keys: Keys) -> Owner:
    return Owner.login(database, registry, keys, "worker_b")


def reconcile(by: Worker, token: str, segment: int = 1, grant: str | None = None) -> Any:
    return by.call(
        "select * from pgfence.reconcile(%s, %s, %s, %s, %s)",
        [RESOURCE, grant_of(token).operation_root, segment, DIGEST, grant],
    )


def report(by: Worker, token: str, segment: int = 1) -> None:
    by.call("select pgfence.report_unknown(%s, %s, %s)", [token, segment, DIGEST])


def wait_no_longer(by: Worker) -> None:
    """A wait for a lock becomes an error: whoever is not held up never waits at all."""
    by.conn.execute("set lock_timeout = '10s'")


# What reconcile says


def test_r45_a_longer_prefix_that_is_enforced_hides_no_shadow(
    worker: Worker, successor: Worker
) -> None:
    shadow(worker.database, "invoice-batch/")
    before = worker.acquire(RESOURCE)
    end_lease(worker.database, before.lease)
    assert worker.apply(before.token, 1).verdict == "WOULD_REFUSE"  # and it writes, without receipt
    enforce(worker.database, RESOURCE)
    after = successor.acquire(RESOURCE)
    assert successor.apply(after.token, 1).verdict == "ACCEPTED"
    assert reconcile(worker, before.token).reason == "IN_SHADOW"
    # control: what was granted under enforcement is proven
    end_lease(worker.database, after.lease)
    worker.advance(worker.acquire(RESOURCE).token)
    assert reconcile(successor, after.token, 2).outcome == "PROVEN_NOT_APPLIED"


def test_r45_a_root_that_another_registry_granted_again_is_not_proven_by_its_first_fence(
    database: Database, registry_database: Database, keys: Keys, worker: Worker
) -> None:
    first = worker.acquire(RESOURCE, "job-1")
    report(worker, first.token)
    use_registry_elsewhere(database, registry_database, tolerance_ms=0)
    owner = Owner.login(database, registry_database, keys, "worker_a")
    rival = Owner.login(database, registry_database, keys, "worker_b")
    between = rival.acquire(RESOURCE)
    assert rival.advance(between.token, rival.prove(between.lease)).verdict == "ADVANCED"
    # control: while nothing else was granted for the root, it is proven
    assert reconcile(worker, first.token).outcome == "PROVEN_NOT_APPLIED"
    report(worker, first.token)
    rival.registry.release(between.lease)
    again = owner.acquire(RESOURCE, "job-1")
    assert grant_of(again.token).operation_root == grant_of(first.token).operation_root
    with owner.resource.transaction():
        assert owner.apply(again.token, 1, owner.prove(again.lease)).verdict == "ACCEPTED"
        report(worker, again.token)
        worker.conn.execute("set lock_timeout = '200ms'")
        with refused("55P03"):  # it waits for the commit that is on its way, and says nothing
            reconcile(worker, again.token)
    assert reconcile(worker, again.token).outcome == "ACCEPTED"


def test_r45_without_a_report_nothing_is_said_of_what_another_registry_grants(
    worker: Worker, registry: Database, owner: Owner
) -> None:
    held = owner.acquire(RESOURCE)
    assert reconcile(worker, held.token).reason == "UNKNOWN_OPERATION"
    report(worker, held.token)
    assert reconcile(worker, held.token).reason == "LEASE_HELD"


# Who is held up


@pytest.mark.parametrize("answered", [True, False], ids=["attack", "control"])
def test_r45_an_answer_in_an_open_transaction_holds_up_no_successor_that_reconciles(
    worker: Worker, successor: Worker, answered: bool
) -> None:
    before = worker.acquire(RESOURCE)
    assert worker.apply(before.token, 1).verdict == "ACCEPTED"
    report(worker, before.token, 2)
    end_lease(worker.database, before.lease)
    after = successor.acquire(RESOURCE)
    wait_no_longer(successor)
    worker.conn.execute("begin")
    if answered:
        worker.call(
            "select * from pgfence.answer_unknown(%s, %s, 2, 'ASK_A_PERSON', 'x')",
            [RESOURCE, grant_of(before.token).operation_root],
        )
    assert reconcile(successor, before.token, 2, after.token).outcome == "PROVEN_NOT_APPLIED"
    assert fence_row(worker.database, RESOURCE).highest_fence == after.fence_token
    worker.conn.execute("commit")
    assert reconcile(successor, before.token, 2, after.token).outcome == "PROVEN_NOT_APPLIED"
    left = successor.conn.execute("select count(*) from pgfence.unknown_outcomes()").fetchone()
    assert left == (0,)


def test_r44_who_reconciles_in_an_open_transaction_holds_up_no_report(
    worker: Worker, successor: Worker
) -> None:
    before = worker.acquire(RESOURCE)
    report(worker, before.token)
    end_lease(worker.database, before.lease)
    after = successor.acquire(RESOURCE)
    wait_no_longer(worker)
    with successor.transaction():
        assert reconcile(successor, before.token, 1, after.token).outcome == "PROVEN_NOT_APPLIED"
        report(worker, before.token)


@pytest.mark.parametrize("level", LEVELS)
def test_r20_a_past_owner_keeps_no_lock_where_the_registry_is_elsewhere(
    owner: Owner, rival: Owner, level: str
) -> None:
    before = owner.acquire(RESOURCE)
    proof = owner.prove(before.lease)
    assert owner.apply(before.token, 1, proof).verdict == "ACCEPTED"
    owner.registry.release(before.lease)
    after = rival.acquire(RESOURCE)
    wait_no_longer(rival.resource)
    with owner.resource.transaction(level):
        assert owner.apply(before.token, 2, proof[:-8] + "AAAAAAAA").verdict == "MALFORMED"
        assert rival.apply(after.token, 1, rival.prove(after.lease)).verdict == "ACCEPTED"


@pytest.mark.parametrize("call", ["refused", "advance"])
def test_r20_who_has_the_lock_without_being_admitted_is_ended_by_the_server(
    owner: Owner, call: str
) -> None:
    held = owner.acquire(RESOURCE)
    proof = owner.prove(held.lease)
    with owner.resource.transaction():
        if call == "refused":
            assert owner.apply(held.token, 9, proof).verdict == "SEGMENT_GAP"
        else:
            assert owner.advance(held.token, proof).verdict == "ADVANCED"
        row = owner.resource.conn.execute(
            "select setting::bigint from pg_settings"
            " where name = 'idle_in_transaction_session_timeout'"
        ).fetchone()
        assert row is not None
        assert 0 < row[0] <= 30_000
    # control: nothing stays of it, and a stranger to the lock is not limited
    with owner.resource.transaction():
        assert owner.apply(held.token, 9, proof[:-8] + "AAAAAAAA").verdict == "MALFORMED"
        shown = owner.resource.conn.execute("show idle_in_transaction_session_timeout").fetchone()
        assert shown == ("0",)


# Proofs


@pytest.mark.parametrize("level", LEVELS)
def test_r13_an_old_snapshot_gives_no_proof_of_a_lease_that_was_revoked_since(
    owner: Owner, registry: Database, level: str
) -> None:
    held = owner.acquire(RESOURCE)
    owner.registry.conn.execute(f"begin isolation level {level}")
    owner.registry.conn.execute("select")
    as_owner(registry, "update pgfence.configuration set epoch_floor = 5")
    if level in SNAPSHOT_LEVELS:
        with refused("PF301"):
            owner.ask_proof(held.lease)
    else:  # control
        assert owner.ask_proof(held.lease).state == "EXPIRED"
    owner.registry.conn.execute("rollback")
    with psycopg.connect(registry.dsn("auditor")) as conn:
        assert conn.execute("select count(*) from pgfence_registry.proofs").fetchone() == (0,)


# Answers


def answer(by: Worker, token: str, segment: int, says: str) -> Any:
    return by.call(
        "select * from pgfence.answer_unknown(%s, %s, %s, %s, 'seen')",
        [RESOURCE, grant_of(token).operation_root, segment, says],
    )


def test_r45_after_not_applied_no_commit_comes_of_what_began_in_shadow(worker: Worker) -> None:
    shadow(worker.database, "invoice-batch/")
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    report(worker, held.token, 2)
    with refused("PF307"):
        answer(worker, held.token, 2, "NOT_APPLIED")
    enforce(worker.database, "invoice-batch/")
    with refused("PF307"):
        answer(worker, held.token, 2, "NOT_APPLIED")
    end_lease(worker.database, held.lease)
    assert answer(worker, held.token, 2, "NOT_APPLIED").reason == "IN_SHADOW"
    # also where the clock goes back
    as_owner(
        worker.database,
        "update pgfence_registry.grants set lease_ends_at = now() + interval '1 hour'",
    )
    assert worker.apply(held.token, 2).verdict == "NOT_HELD"


def test_r20_who_waits_with_an_answer_for_another_one_holds_no_lock(
    worker: Worker, successor: Worker, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    report(worker, held.token, 2)
    end_lease(worker.database, held.lease)
    operator = Worker.login(worker.database, keys, "dba")
    wait_no_longer(successor)
    with worker.transaction():
        answer(worker, held.token, 2, "ASK_A_PERSON")
        settled = in_background(lambda: answer(operator, held.token, 2, "NOT_APPLIED"))
        wait_until_blocked(worker.database.connect(), operator.pid)
        after = successor.acquire(RESOURCE)
        assert successor.apply(after.token, 1).verdict == "ACCEPTED"
    assert settled.result().outcome == "PROVEN_NOT_APPLIED"


# New resources


def test_r36_an_advisory_lock_keeps_nobody_from_a_new_resource(
    worker: Worker, database: Database, successor: Worker
) -> None:
    stranger = database.connect("auditor")
    stranger.execute(
        "select pg_advisory_lock(hashtext('pgfence ' || %s), %s)", [RESOURCE, worker.pid]
    )
    worker.conn.execute("set lock_timeout = '7s'")
    with worker.transaction():
        assert worker.ask(RESOURCE).state == "SIGNING"
        assert worker.conn.execute("show lock_timeout").fetchone() == ("7s",)
        # control: who really makes the row is waited for, and not by a lock that nobody sees
        asked = successor.ask(RESOURCE)
        assert asked.state == "WAIT"
        assert asked.reason == "a transaction on the resource is still open"
