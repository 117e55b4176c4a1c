"""The registry: requests, the queue, renewing, releasing, minting (R34 to R38, R52, R53)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.support import PATIENCE, Database, Keys, sign_pending, wait_until_blocked
from tests.workers import Worker, as_owner, end_lease, fence_row, grant_of, in_background

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


REQUEST = {
    "request_id": "request-1",
    "resource": RESOURCE,
    "operation": "settle",
    "root": f"sha256:{'0' * 64}",
    "ttl_ms": 1000,
    "continues_root": "",
}
ANOTHER_ROOT = f"sha256:{'1' * 64}"


def request(worker: Worker, **changes: Any) -> Any:
    """One call of request(), the root and all."""
    return worker.call(
        "select * from pgfence_registry.request(%(request_id)s, %(resource)s, %(operation)s,"
        " %(root)s, %(ttl_ms)s, %(continues_root)s)",
        REQUEST | changes,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"resource": "another"},
        {"operation": "another"},
        {"root": ANOTHER_ROOT},
        {"ttl_ms": 1001},
        {"continues_root": ANOTHER_ROOT},
    ],
    ids=str,
)
def test_r34_same_request_id_with_other_arguments_is_an_error(
    worker: Worker, changes: dict[str, Any]
) -> None:
    first = request(worker)
    with pytest.raises(psycopg.Error) as caught:
        request(worker, **changes)
    assert caught.value.sqlstate == "PF303"
    assert request(worker).lease == first.lease


def test_r34_request_ids_of_two_workloads_do_not_meet(worker: Worker, rival: Worker) -> None:
    assert worker.acquire(RESOURCE, "request-1").state == "HELD"
    assert rival.acquire("invoice-batch/other", "request-1").state == "HELD"


@pytest.mark.parametrize(
    "changes",
    [
        {"resource": "two words"},
        {"resource": ""},
        {"resource": None},
        {"operation": None},
        {"request_id": None},
        {"root": "sha256:short"},
        {"root": f"sha256:{'A' * 64}"},
        {"root": f"{'0' * 64}"},
        {"root": None},
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
    with pytest.raises(psycopg.Error) as caught:
        request(worker, **changes)
    assert caught.value.sqlstate == "PF301"
    assert caught.value.diag.message_hint


@pytest.mark.parametrize("ttl_ms", [100, 86_400_000])
def test_r34_control_the_shortest_and_the_longest_lease_are_granted(
    worker: Worker, ttl_ms: int
) -> None:
    assert request(worker, ttl_ms=ttl_ms).state == "SIGNING"


def test_r6_role_without_a_workload_is_told_what_to_run(database: Database, keys: Keys) -> None:
    nobody = Worker.login(database, keys, "billing_owner")
    with pytest.raises(psycopg.Error) as caught:
        nobody.ask(RESOURCE)
    assert caught.value.sqlstate == "PF302"
    assert "add_workload" in (caught.value.diag.message_hint or "")


@pytest.mark.parametrize("function", ["renew", "release", "look", "withdraw", "prove"])
def test_r36_a_null_is_a_clear_error(worker: Worker, function: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        worker.call(f"select * from pgfence_registry.{function}(null)")
    assert caught.value.sqlstate == "PF301"


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
    assert worker.look(held.lease).token is None  # the token is for the request that asked for it


def test_r35_renewing_shortens_no_lease(worker: Worker, database: Database) -> None:
    held = worker.acquire(RESOURCE, ttl_ms=1000)
    end_lease(database, held.lease, after=600)
    before = worker.look(held.lease).lease_ends_at
    assert worker.renew(held.lease).lease_ends_at == before


def test_r36_lease_that_was_released_is_not_prolonged(worker: Worker) -> None:
    held = worker.acquire(RESOURCE)
    worker.release(held.lease)
    renewed = worker.renew(held.lease)
    assert (renewed.state, renewed.lease_ends_at) == ("RELEASED", held.lease_ends_at)


def test_r35_lease_that_is_over_is_not_renewed(worker: Worker, database: Database) -> None:
    held = worker.acquire(RESOURCE)
    end_lease(database, held.lease)
    assert worker.renew(held.lease).state == "EXPIRED"
    assert worker.look(held.lease).state == "EXPIRED"
    assert worker.ask(RESOURCE, held.request_id).token is None


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


@pytest.mark.parametrize(
    ("meanwhile", "state"),
    [("lease_ends_at = clock_timestamp()", "EXPIRED"), ("state = 'SUPERSEDED'", "SUPERSEDED")],
)
def test_r36_lease_that_is_over_when_its_release_gets_the_lock_was_not_released(
    worker: Worker, database: Database, meanwhile: str, state: str
) -> None:
    held = worker.acquire(RESOURCE)
    holder = database.connect(autocommit=False)
    holder.execute("select from pgfence.fences for no key update")
    releasing = in_background(lambda: worker.release(held.lease))
    wait_until_blocked(database.connect(), worker.pid)
    as_owner(database, f"update pgfence_registry.grants set {meanwhile}")
    holder.rollback()
    assert releasing.result(PATIENCE).state == state
    assert worker.look(held.lease).state == state


def test_r35_who_waited_for_the_lock_looks_at_the_lease_before_it_anew(
    worker: Worker, rival: Worker, database: Database
) -> None:
    """Both at the head of the queue: each seems dead until its transaction is over."""
    held = worker.acquire(RESOURCE)
    assert rival.ask(RESOURCE, "first").state == "WAIT"
    assert worker.ask(RESOURCE, "second").state == "WAIT"
    end_lease(database, held.lease)
    observer, holder = database.connect(), database.connect(autocommit=False)
    holder.execute("select from pgfence.fences for no key update")
    for name in ("first", "second"):
        forget(database, name)
    first = in_background(lambda: rival.ask(RESOURCE, "first"))
    wait_until_blocked(observer, rival.pid)
    second = in_background(lambda: worker.ask(RESOURCE, "second"))
    wait_until_blocked(observer, worker.pid)
    ((released,),) = observer.execute("select clock_timestamp()").fetchall()
    holder.rollback()
    granted, waits = first.result(PATIENCE), second.result(PATIENCE)
    assert granted.state == "SIGNING"
    assert (waits.state, waits.reason) == ("WAIT", "the resource is held")
    assert granted.lease_ends_at >= released + timedelta(milliseconds=granted.ttl_ms)


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
    assert worker.call("select * from pgfence_registry.withdraw('gives-up')").state == "UNKNOWN"
    withdrawn = rival.call("select * from pgfence_registry.withdraw('gives-up')")
    assert withdrawn.state == "WITHDRAWN"
    worker.release(held.lease)
    held = worker.acquire(RESOURCE, "next")
    assert held.state == "HELD"
    assert rival.ask(RESOURCE, "gives-up").state == "WITHDRAWN"
    assert worker.call("select * from pgfence_registry.withdraw('next')").state == "RELEASED"
    assert worker.look(held.lease).state == "RELEASED"
    assert rival.call("select * from pgfence_registry.withdraw('never')").state == "UNKNOWN"


def test_r36_release_or_withdrawal_wakes_the_waiter_at_the_head_of_the_queue(
    worker: Worker, rival: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    rival.ask(RESOURCE, "dead")
    rival.ask(RESOURCE, "gives-up")
    first, second = (rival.ask(RESOURCE, name) for name in ("first", "second"))
    as_owner(
        database,
        "update pgfence_registry.requests set alive_until = clock_timestamp() + case request_id"
        " when 'dead' then interval '0' else interval '1 hour' end",
    )
    for waiting in (first, second):
        rival.conn.execute(f"listen {waiting.wake_channel}")
    rival.call("select * from pgfence_registry.withdraw('gives-up')")
    worker.release(held.lease)
    heard = rival.conn.notifies(timeout=PATIENCE, stop_after=2)
    assert [notify.channel for notify in heard] == [first.wake_channel] * 2


def test_r34_only_waiters_that_were_dead_for_a_day_are_forgotten(
    worker: Worker, rival: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE, "granted")
    worker.acquire("another", "held")
    for name in ("old", "dead", "alive"):
        rival.ask(RESOURCE, name)
    rival.ask("another", "elsewhere")
    as_owner(
        database,
        "update pgfence_registry.requests set alive_until = clock_timestamp() - case"
        " when request_id in ('old', 'granted', 'elsewhere') then interval '25 hours'"
        " when request_id = 'dead' then interval '23 hours' else interval '-1 minute' end",
    )
    worker.release(held.lease)
    assert rival.ask(RESOURCE, "alive").state == "SIGNING"
    left = database.connect().execute("select request_id from pgfence_registry.requests")
    assert {name for (name,) in left} == {"granted", "held", "dead", "alive", "elsewhere"}


def test_r36_asking_again_keeps_a_waiter_alive(
    worker: Worker, rival: Worker, database: Database
) -> None:
    worker.acquire(RESOURCE)
    rival.ask(RESOURCE, "waiting")
    forget(database, "waiting")
    rival.ask(RESOURCE, "waiting")
    lives = database.connect().execute(
        "select alive_until > asked_at from pgfence_registry.requests where request_id = 'waiting'"
    )
    assert lives.fetchone() == (True,)


def test_r20_request_in_a_transaction_that_goes_on_is_limited(worker: Worker) -> None:
    with worker.transaction():
        assert worker.ask(RESOURCE).state == "SIGNING"
        show = "select current_setting('idle_in_transaction_session_timeout')::interval as idle"
        assert 0 < worker.call(show).idle.total_seconds() <= 5


def test_r20_owner_that_gives_back_in_a_transaction_that_goes_on_has_until_its_lease_would_end(
    worker: Worker,
) -> None:
    show = "select current_setting('idle_in_transaction_session_timeout')::interval as idle"
    held = worker.acquire(RESOURCE, ttl_ms=60_000)
    with worker.transaction():
        assert worker.release(held.lease).state == "RELEASED"
        assert 0 < worker.call(show).idle.total_seconds() <= 60
    with worker.transaction():
        assert worker.release(held.lease).state == "RELEASED"
        assert worker.call(show).idle.total_seconds() == 0, "it takes no lock the second time"


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
    renewed = worker.renew(answer.lease)
    assert (renewed.state, renewed.lease_ends_at) == ("SIGNING", answer.lease_ends_at)
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


def test_r36_waiter_whose_unsigned_grant_ended_is_before_those_that_came_after_it(
    worker: Worker, rival: Worker, database: Database
) -> None:
    answer = worker.ask(RESOURCE, "first")
    assert rival.ask(RESOURCE, "second").state == "WAIT"
    end_lease(database, answer.lease)
    overtaking = rival.acquire(RESOURCE, "second")
    assert worker.ask(RESOURCE, "first").state == "WAIT"
    assert rival.ask(RESOURCE, "third").state == "WAIT"
    rival.release(overtaking.lease)
    assert rival.ask(RESOURCE, "third").reason == "another request is before this one"
    again = worker.acquire(RESOURCE, "first")
    assert again.fence_token == overtaking.fence_token + 1
    # A grant that was signed is over for good.
    end_lease(database, again.lease)
    rival.acquire(RESOURCE, "third")
    assert worker.ask(RESOURCE, "first").state == "SUPERSEDED"


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
    waiting = rival.ask(RESOURCE, "theirs")
    assert waiting.reason == "a transaction on the resource is still open"
    assert waiting.look_again_ms == 5  # not at once
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
