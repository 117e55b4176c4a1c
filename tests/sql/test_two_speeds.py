"""A grant that passed every rule is not checked in full again, and nothing gets past (R5 to R14).

The first accepted segment arms the quick way of fenced_apply(); each test then takes one thing away
that the full check had found, and the next segment must meet the verdict of the full check.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import psycopg
import pytest

from tests.support import PATIENCE, Database, Keys, wait_until, wait_until_blocked
from tests.workers import (
    Worker,
    as_owner,
    begin_before_the_end,
    fence_row,
    in_background,
    lease_is_over,
    waits_for_a_lock,
)

RESOURCE = "invoice-batch/2026-07-19"
BUMP = "update pgfence.configuration set version = version + 1"


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


def test_next_segment_of_a_checked_grant_needs_no_full_check(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    with psycopg.connect(database.dsn(), autocommit=True) as superuser:
        superuser.execute("drop function pgfence._decide(text, bigint, bytea, text)")
    assert worker.apply(held.token, 2).verdict == "ACCEPTED"
    with pytest.raises(psycopg.errors.UndefinedFunction):
        worker.apply(held.token, 2)


def test_r39_what_another_server_found_is_not_believed(worker: Worker, database: Database) -> None:
    """As on a promoted standby: nothing else in the database has changed."""
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    as_owner(database, "update pgfence.fences set checked_server = 'another'")
    with psycopg.connect(database.dsn(), autocommit=True) as superuser:
        superuser.execute("drop function pgfence._decide(text, bigint, bytea, text)")
    with pytest.raises(psycopg.errors.UndefinedFunction):
        worker.apply(held.token, 2)


TAKEN_AWAY = {
    "the policy has a new generation": (
        "select pgfence.set_policy('invoice-batch/', array['settle'])",
        "STALE_POLICY",
    ),
    "the login role was taken out of its workload": (
        "select pgfence.remove_workload('worker_a')",
        "NOT_OWNER",
    ),
    "the epoch was revoked": (
        "update pgfence.configuration set epoch_floor = 9, version = version + 1",
        "REVOKED_EPOCH",
    ),
    "the timeline is another": (
        "update pgfence.configuration set timeline = '0000FFFF'",
        "REBIND_REQUIRED",
    ),
    "the database is another": (
        "update pgfence.configuration set database_oid = 1",
        "REBIND_REQUIRED",
    ),
    "the server was started again elsewhere": (
        "with restarted as (update pgfence.fences set checked_server = 'x')"
        " update pgfence.configuration set system_identifier = 1",
        "REBIND_REQUIRED",
    ),
    "the resource was paused": ("update pgfence.fences set paused_because = 'x'", "PAUSED"),
    "the lease has ended": (
        "update pgfence_registry.grants set lease_ends_at = clock_timestamp()",
        "NOT_HELD",
    ),
    "the lease was released": (
        "with released as (update pgfence_registry.grants set state = 'RELEASED')"
        " update pgfence.fences set current_lease = null",
        "NOT_HELD",
    ),
    "a higher fence was minted": (
        "with minted as (update pgfence_registry.grants set state = 'SUPERSEDED')"
        " update pgfence.fences set issued_fence = 7, current_lease = 'lease-of-another'",
        "NOT_HELD",
    ),
    "the key has expired": (
        "with expired as (update pgfence.trust_keys set expires_at = 'epoch'),"
        " forgotten as (update pgfence.operations set key_expires_at = 'epoch')"
        " update pgfence.fences set checked_until = clock_timestamp()",
        "UNKNOWN_KEY",
    ),
    "a newer owner has written": (
        "update pgfence.fences set highest_fence = 8, last_segment = 1, checked_hash = null",
        "STALE_OWNER",
    ),
}


def test_r4_hash_of_a_token_is_not_the_token(worker: Worker, database: Database) -> None:
    """The hash only finds the row; two tokens may have the same one."""
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    another = "v4.public.another"
    as_owner(
        database,
        "update pgfence.fences"
        f" set checked_hash = pg_catalog.hashtextextended('{another}' collate \"C\", 0)",
    )
    assert worker.apply(another, 2).verdict == "MALFORMED"


@pytest.mark.parametrize("what", TAKEN_AWAY)
def test_whatever_the_full_check_found_is_asked_again(
    worker: Worker, database: Database, what: str
) -> None:
    change, verdict = TAKEN_AWAY[what]
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    as_owner(database, change)
    assert worker.apply(held.token, 2).verdict == verdict
    assert fence_row(database, RESOURCE).last_segment == 1


def test_r10_stale_owner_does_not_pass_on_what_was_found_for_its_lower_fence(
    worker: Worker, database: Database, keys: Keys
) -> None:
    """The new owner has advanced and written nothing yet, so that segment 1 would be the next."""
    rival = Worker.login(database, keys, "worker_b")
    old = worker.acquire(RESOURCE)
    assert worker.apply(old.token, 1, "old").verdict == "ACCEPTED"
    worker.release(old.lease)
    new = rival.acquire(RESOURCE)
    assert rival.advance(new.token).verdict == "ADVANCED"
    assert worker.apply(old.token, 1, "old").verdict == "STALE_OWNER"
    assert rival.apply(new.token, 1, "new").verdict == "ACCEPTED"


def test_r6_another_role_of_the_same_workload_is_checked_for_itself(
    worker: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    stranger = Worker.login(database, keys, "worker_b")
    assert stranger.apply(held.token, 2).verdict == "NOT_OWNER"
    as_owner(database, "select pgfence.remove_workload('worker_b')")
    as_owner(database, "select pgfence.add_workload('worker-a', 'worker_b')")
    assert stranger.apply(held.token, 2).verdict == "ACCEPTED"
    assert worker.apply(held.token, 3).verdict == "ACCEPTED"


def test_r9_configuration_that_changes_while_the_quick_way_waits_ends_in_40001(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    holder = database.connect(autocommit=False)
    holder.execute("set role pgfence_owner")
    holder.execute("select from pgfence.fences for no key update")
    future = in_background(lambda: worker.apply(held.token, 2))
    wait_until_blocked(database.connect(), worker.pid)
    as_owner(database, BUMP)
    holder.rollback()
    with pytest.raises(psycopg.errors.SerializationFailure):
        future.result(PATIENCE)
    assert worker.apply(held.token, 2).verdict == "ACCEPTED"


def test_r20_renewed_lease_gives_the_next_transaction_its_full_length(worker: Worker) -> None:
    held = worker.acquire(RESOURCE, ttl_ms=60_000)
    worker.apply(held.token, 1)
    renewed = worker.renew(held.lease)
    worker.apply(held.token, 2)
    end = worker.call("select lease_ends_at from pgfence_registry.look(%s)", [held.lease])
    assert end.lease_ends_at == renewed.lease_ends_at
    assert fence_row(worker.database, RESOURCE).admitted_until == renewed.lease_ends_at


@pytest.mark.parametrize("between", [BUMP, "select"], ids=["checked in full", "the quick way"])
def test_r20_a_later_segment_does_not_prolong_its_transaction(
    worker: Worker, database: Database, keys: Keys, between: str
) -> None:
    renewer = Worker.login(database, keys, "worker_a")
    held = worker.acquire(RESOURCE, ttl_ms=60_000)
    with worker.transaction():
        worker.apply(held.token, 1)
        assert renewer.renew(held.lease).lease_ends_at > held.lease_ends_at
        as_owner(database, between)
        worker.apply(held.token, 2)
    assert fence_row(database, RESOURCE).admitted_until == held.lease_ends_at
    worker.apply(held.token, 3)
    assert fence_row(database, RESOURCE).admitted_until > held.lease_ends_at


def test_r9_lease_that_ends_while_the_quick_way_waits_ends_in_40001(
    worker: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    holder = database.connect(autocommit=False)
    holder.execute("set role pgfence_owner")
    holder.execute("select from pgfence.fences for no key update")
    observer, second = database.connect(), Worker.login(database, keys, "worker_a")
    calls: list[Future[Any]] = []

    def steps() -> None:
        calls.append(in_background(lambda: second.apply(held.token, 2)))
        assert waits_for_a_lock(observer, second.pid, calls[-1])

    begin_before_the_end(second, held.lease, steps)
    wait_until(lambda: lease_is_over(database, held.lease), "the lease is over")
    holder.rollback()
    with pytest.raises(psycopg.errors.SerializationFailure):
        calls[-1].result(PATIENCE)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_r9_outside_read_committed_every_segment_is_checked_in_full(
    worker: Worker, database: Database, level: str
) -> None:
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    with worker.transaction(level):
        assert worker.apply(held.token, 2).verdict == "ACCEPTED"
    worker.conn.execute(f"begin isolation level {level}")
    worker.conn.execute("select count(*) from pg_class")
    as_owner(database, BUMP)
    with pytest.raises(psycopg.errors.SerializationFailure):
        worker.apply(held.token, 3)
    worker.conn.execute("rollback")


# what grows


def test_r11_r47_an_owner_begins_as_quickly_after_thousands_of_others(
    worker: Worker, database: Database
) -> None:
    """It reads a few rows of what was done before, and not all of it."""
    held = worker.acquire(RESOURCE)
    accepted = worker.apply(held.token, 1)
    worker.release(held.lease)
    with psycopg.connect(database.dsn(), autocommit=True) as superuser:
        superuser.execute("set role pgfence_owner")
        for statement in THOUSANDS_OF_OWNERS:
            superuser.execute(statement, {"resource": RESOURCE})
        superuser.execute("reset role; analyze")
    held = worker.acquire(RESOURCE)
    with worker.conn.transaction():
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        missing = worker.call(
            "select count(*) as n from"
            " pgfence.missing_receipts(%s, array[%s], array[1::bigint], array[%s])",
            [RESOURCE, first_root(database), accepted.receipt],
        )
        assert missing.n == 0
        read = worker.call(
            "select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) as n"
            " from pg_stat_xact_all_tables where schemaname = 'pgfence'"
            " and relname in ('operations', 'receipts')"
        )
    assert 0 < read.n < 20


#: Each with one segment, under the fences from 2 on.
THOUSANDS_OF_OWNERS = (
    "insert into pgfence.operations"
    " select o.resource, n, 'sha256:' || encode(sha256(n::text::bytea), 'hex'), '',"
    "        o.operation_class, o.owner, o.lease || n, o.request_id || n, o.issued_at,"
    "        o.grant_digest, sha256(n::text::bytea), o.grant_message, o.bundle_version,"
    "        o.key_expires_at, o.first_accepted_at"
    " from pgfence.operations as o, generate_series(2, 3000) as n"
    " where o.resource = %(resource)s and o.fence_token = 1",
    "insert into pgfence.receipts"
    " select r.resource, o.fence_token, r.segment_seq, o.operation_root, r.grant_digest,"
    "        r.payload_digest, r.session_role, r.accepted_at, r.previous_digest, r.digest"
    " from pgfence.receipts as r join pgfence.operations as o using (resource)"
    " where r.fence_token = 1 and o.fence_token > 1",
    "update pgfence.fences as f set highest_fence = o.fence_token, issued_fence = o.fence_token,"
    "       operation_root = o.operation_root"
    " from pgfence.operations as o where o.resource = f.resource and o.fence_token = 3000",
)


def first_root(database: Database) -> str:
    with psycopg.connect(database.dsn()) as conn:
        row = conn.execute(
            "select operation_root from pgfence.operations where fence_token = 1"
        ).fetchone()
    assert row is not None
    return str(row[0])
