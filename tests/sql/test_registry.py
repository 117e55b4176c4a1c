"""The registry: requests, the queue, renewing, releasing, minting (R34 to R38, R52, R53)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support import PATIENCE, Database, Keys, sign_pending
from tests.workers import Worker, as_owner, end_lease, fence_row, grant_of

RESOURCE = "invoice-batch/2026-07-19"


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture
def rival(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_b")


def forget(database: Database, request_id: str) -> None:
    """Let a waiter die: it has not asked again in time."""
    as_owner(
        database,
        "update pgfence_registry.requests set alive_until = clock_timestamp()"
        " where request_id = %s",
        [request_id],
    )


def test_r34_asking_again_with_the_same_request_id_gives_the_same_grant(worker: Worker) -> None:
    held = worker.acquire(RESOURCE, "request-1")
    again = worker.ask(RESOURCE, "request-1")
    assert (again.token, again.lease, again.fence_token) == (held.token, held.lease, 1)


def test_r34_same_request_id_with_other_arguments_is_an_error(worker: Worker) -> None:
    worker.acquire(RESOURCE, "request-1")
    with pytest.raises(psycopg.Error) as caught:
        worker.ask(RESOURCE, "request-1", ttl_ms=1_000)
    assert caught.value.sqlstate == "PF303"


def test_r34_request_ids_of_two_workloads_do_not_meet(worker: Worker, rival: Worker) -> None:
    assert worker.acquire(RESOURCE, "request-1").state == "HELD"
    assert rival.acquire("invoice-batch/other", "request-1").state == "HELD"


@pytest.mark.parametrize(
    "changes",
    [
        {"resource": "two words"},
        {"resource": ""},
        {"resource": "é"},
        {"resource": "x" * 256},
        {"operation": 'quo"te'},
        {"request_id": "back\\slash"},
        {"ttl_ms": 0},
        {"ttl_ms": 99},
        {"ttl_ms": 10**9},
        {"ttl_ms": None},
        {"continues_root": "sha256:short"},
        {"continues_root": None},
    ],
    ids=str,
)
def test_r34_request_that_could_never_be_granted_is_a_clear_error(
    worker: Worker, changes: dict[str, Any]
) -> None:
    arguments: dict[str, Any] = {
        "request_id": "request-1",
        "resource": RESOURCE,
        "operation": "settle",
        "ttl_ms": 1000,
        "continues_root": "",
        **changes,
    }
    with pytest.raises(psycopg.Error) as caught:
        worker.call(
            "select * from pgfence_registry.request(%(request_id)s, %(resource)s, %(operation)s,"
            f" 'sha256:{'0' * 64}', %(ttl_ms)s, %(continues_root)s)",
            arguments,
        )
    assert caught.value.sqlstate == "PF301"
    assert caught.value.diag.message_hint


def test_r6_role_without_a_workload_is_told_what_to_run(database: Database, keys: Keys) -> None:
    nobody = Worker.login(database, keys, "billing_owner")
    with pytest.raises(psycopg.Error) as caught:
        nobody.ask(RESOURCE)
    assert caught.value.sqlstate == "PF302"
    assert "add_workload" in (caught.value.diag.message_hint or "")


def test_r35_new_request_of_the_same_owner_waits_and_then_gets_a_higher_fence(
    worker: Worker, database: Database
) -> None:
    first = worker.acquire(RESOURCE)
    waiting = worker.ask(RESOURCE, "second")
    assert (waiting.state, waiting.reason) == ("WAIT", "the resource is held")
    worker.release(first.lease)
    second = worker.acquire(RESOURCE, "second")
    assert second.fence_token > first.fence_token


def test_r35_renewing_changes_neither_fence_nor_grant(worker: Worker) -> None:
    held = worker.acquire(RESOURCE)
    renewed = worker.renew(held.lease)
    assert renewed.state == "HELD"
    assert renewed.lease_ends_at > held.lease_ends_at
    assert (renewed.fence_token, renewed.grant_digest) == (held.fence_token, held.grant_digest)
    assert worker.ask(RESOURCE, held.request_id).token == held.token


def test_r35_lease_that_is_over_is_not_renewed(worker: Worker, database: Database) -> None:
    held = worker.acquire(RESOURCE)
    end_lease(database, held.lease)
    assert worker.renew(held.lease).state == "EXPIRED"
    assert worker.look(held.lease).state == "EXPIRED"


def test_r36_renew_release_and_look_act_only_for_the_workload_that_owns_the_lease(
    worker: Worker, rival: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    for act in (rival.renew, rival.release, rival.look):
        assert act(held.lease).state == "UNKNOWN"
    assert worker.look(held.lease).state == "HELD"


def test_r36_release_of_an_expired_owner_leaves_the_next_owners_lease_alone(
    worker: Worker, rival: Worker, database: Database
) -> None:
    old = worker.acquire(RESOURCE)
    end_lease(database, old.lease)
    new = rival.acquire(RESOURCE)
    assert worker.release(old.lease).state == "SUPERSEDED"
    assert rival.look(new.lease).state == "HELD"
    assert rival.apply(new.token, 1).verdict == "ACCEPTED"


def test_r36_expired_without_a_successor_and_superseded_are_told_apart(
    worker: Worker, rival: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    end_lease(database, held.lease)
    assert worker.look(held.lease).state == "EXPIRED"
    rival.acquire(RESOURCE)
    assert worker.look(held.lease).state == "SUPERSEDED"


def test_r36_waiters_are_served_in_the_order_in_which_they_asked(
    worker: Worker, rival: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    assert rival.ask(RESOURCE, "first").state == "WAIT"
    assert worker.ask(RESOURCE, "second").state == "WAIT"
    worker.release(held.lease)
    assert worker.ask(RESOURCE, "second").reason == "another request is before this one"
    first = rival.acquire(RESOURCE, "first")
    assert first.state == "HELD"
    rival.release(first.lease)
    assert worker.acquire(RESOURCE, "second").state == "HELD"


def test_r36_dead_waiter_is_passed_over_and_nothing_is_minted_for_it(
    worker: Worker, rival: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    assert rival.ask(RESOURCE, "dead").state == "WAIT"
    assert worker.ask(RESOURCE, "alive").state == "WAIT"
    worker.release(held.lease)
    forget(database, "dead")
    alive = worker.acquire(RESOURCE, "alive")
    assert (alive.state, alive.fence_token) == ("HELD", held.fence_token + 1)


def test_r36_waiter_that_gave_up_is_passed_over_and_stays_withdrawn(
    worker: Worker, rival: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    rival.ask(RESOURCE, "gives-up")
    assert worker.ask(RESOURCE, "next").state == "WAIT"
    withdrawn = rival.call("select * from pgfence_registry.withdraw('gives-up')")
    assert withdrawn.state == "WITHDRAWN"
    worker.release(held.lease)
    assert worker.acquire(RESOURCE, "next").state == "HELD"
    assert rival.ask(RESOURCE, "gives-up").state == "WITHDRAWN"
    assert rival.call("select * from pgfence_registry.withdraw('never')").state == "UNKNOWN"


def test_r36_release_wakes_the_waiter_at_the_head_of_the_queue(
    worker: Worker, rival: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    waiting = rival.ask(RESOURCE, "waiting")
    rival.conn.execute(f"listen {waiting.wake_channel}")
    worker.release(held.lease)
    assert [n.channel for n in rival.conn.notifies(timeout=PATIENCE, stop_after=1)] == [
        waiting.wake_channel
    ]


def test_r36_wait_says_when_the_lease_before_may_be_over(worker: Worker, rival: Worker) -> None:
    held = worker.acquire(RESOURCE)
    assert rival.ask(RESOURCE, "waiting").look_again_ms == 1000  # at least once a second
    end_lease(worker.database, held.lease, after=0.9)
    assert 0 < rival.ask(RESOURCE, "waiting").look_again_ms <= 900


def test_r37_fence_rises_over_all_that_was_ever_issued_also_when_nothing_was_written(
    worker: Worker, database: Database
) -> None:
    fences = []
    for _ in range(3):
        held = worker.acquire(RESOURCE)
        fences.append(held.fence_token)
        worker.release(held.lease)
    assert fences == [1, 2, 3]
    row = fence_row(database, RESOURCE)
    assert (row.issued_fence, row.highest_fence) == (3, 0)


def test_r52_every_change_of_a_grant_but_renewal_updates_the_fence_row(
    worker: Worker, rival: Worker, database: Database
) -> None:
    def version() -> str:
        with psycopg.connect(database.dsn()) as conn:
            row = conn.execute(
                "select ctid::text || xmin::text from pgfence.fences where resource = %s",
                [RESOURCE],
            ).fetchone()
        assert row is not None
        return str(row[0])

    versions = []
    held = worker.acquire(RESOURCE)
    versions.append(version())
    worker.renew(held.lease)
    assert version() == versions[-1]
    worker.release(held.lease)
    versions.append(version())
    held = worker.acquire(RESOURCE)
    versions.append(version())
    end_lease(database, held.lease)
    rival.acquire(RESOURCE)
    versions.append(version())
    assert len(set(versions)) == 4


def test_r53_unsigned_grant_is_signed_once_and_its_worker_is_woken(
    worker: Worker, database: Database
) -> None:
    answer = worker.ask(RESOURCE, "request-1")
    assert (answer.state, answer.token) == ("SIGNING", None)
    assert worker.renew(answer.lease).state == "SIGNING"
    worker.conn.execute(f"listen {answer.wake_channel}")
    sign_pending(database)
    assert len(list(worker.conn.notifies(timeout=PATIENCE, stop_after=1))) == 1
    registry = database.connect("registry")
    again = registry.execute(
        "select pgfence_registry.record_signature(%s, 'another token')", [answer.lease]
    ).fetchone()
    assert again == (False,)


def test_r53_grant_whose_lease_ended_before_it_was_signed_is_decided_again(
    worker: Worker, database: Database
) -> None:
    answer = worker.ask(RESOURCE, "request-1")
    end_lease(database, answer.lease)
    again = worker.ask(RESOURCE, "request-1")
    assert again.state == "SIGNING"
    assert again.fence_token == answer.fence_token + 1
    registry = database.connect("registry")
    late = registry.execute(
        "select pgfence_registry.record_signature(%s, 'too late')", [answer.lease]
    ).fetchone()
    assert late == (False,)
    sign_pending(database)
    assert grant_of(worker.ask(RESOURCE, "request-1").token).fence_token == again.fence_token


def test_r53_renewing_and_releasing_work_while_no_registry_process_runs(worker: Worker) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.renew(held.lease).state == "HELD"
    assert worker.release(held.lease).state == "RELEASED"


def test_r53_fenced_apply_and_renew_send_no_notify(worker: Worker, database: Database) -> None:
    held = worker.acquire(RESOURCE)
    worker.conn.execute("begin")
    worker.apply(held.token, 1)
    worker.renew(held.lease)
    # A transaction that has sent NOTIFY cannot be prepared.
    worker.conn.execute(f"prepare transaction '{database.name}'")
    worker.conn.execute(f"commit prepared '{database.name}'")


def test_r36_request_is_refused_on_an_old_snapshot(worker: Worker) -> None:
    worker.conn.execute("begin isolation level repeatable read")
    with pytest.raises(psycopg.Error) as caught:
        worker.ask(RESOURCE)
    assert caught.value.sqlstate == "PF301"
    worker.conn.execute("rollback")


def test_r37_two_requests_at_once_get_one_grant(worker: Worker, rival: Worker) -> None:
    worker.release(worker.acquire(RESOURCE).lease)
    worker.conn.execute("begin")
    assert worker.ask(RESOURCE, "mine").state == "SIGNING"
    assert rival.ask(RESOURCE, "theirs").reason == "a transaction on the resource is still open"
    worker.conn.execute("commit")
    assert rival.ask(RESOURCE, "theirs").reason == "the resource is held"


def test_r37_two_requests_for_a_resource_that_is_new_get_one_grant(
    worker: Worker, rival: Worker
) -> None:
    worker.conn.execute("begin")
    assert worker.ask(RESOURCE, "mine").state == "SIGNING"
    assert rival.ask(RESOURCE, "theirs").reason == "a transaction on the resource is still open"
    worker.conn.execute("commit")
    assert rival.ask(RESOURCE, "theirs").reason == "the resource is held"


def test_r36_asking_for_a_new_resource_leaves_the_lock_timeout_of_the_client(
    worker: Worker,
) -> None:
    for own in ("0", "7s"):
        worker.conn.execute("begin")
        worker.conn.execute(f"set local lock_timeout = '{own}'")
        assert worker.ask(f"new/{own}").state == "SIGNING"
        assert worker.call("show lock_timeout") == (own,)
        worker.conn.execute("rollback")
