"""Who has no right to a resource keeps nobody from it: past owners take no lock, others are ended.

R20: the registry ends a session that holds up a successor. Here the test plays the registry
process: it asks overdue_sessions() and ends what it finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pgfence.audit import doctor
from pgfence.audit.checks import CHECKS
from pgfence.registry.issuer import Issuer
from tests.support import PATIENCE, Database, Keys, wait_until, wait_until_blocked, wait_until_state
from tests.workers import (
    Worker,
    as_owner,
    begin_before_the_end,
    end_lease,
    fence_row,
    forge,
    grant_of,
    in_background,
    no_timeouts,
)

RESOURCE = "invoice-batch/2026-07-19"
OVERDUE = "select pid, resource from pgfence_registry.overdue_sessions()"


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture
def rival(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_b")


@pytest.fixture
def observer(database: Database) -> psycopg.Connection[Any]:
    return database.connect()


def plainly(worker: Worker, token: str) -> None:
    assert worker.apply(token, 1).verdict == "ACCEPTED"


def in_a_released_savepoint(worker: Worker, token: str) -> None:
    worker.conn.execute("savepoint s")
    plainly(worker, token)
    worker.conn.execute("release s")


def in_an_exception_block(worker: Worker, token: str) -> None:
    worker.conn.execute(
        "do $$ begin perform pgfence.fenced_apply('" + token + "', 1, '');"
        " exception when division_by_zero then null; end $$"
    )


def locked_first_and_accepted_in_a_savepoint(worker: Worker, token: str) -> None:
    assert worker.apply(token, 9).verdict == "SEGMENT_GAP"
    in_a_released_savepoint(worker, token)


def only_refused(worker: Worker, token: str) -> None:
    assert worker.apply(token, 9).verdict == "SEGMENT_GAP"


@pytest.mark.parametrize(
    "hold",
    [
        plainly,
        in_a_released_savepoint,
        in_an_exception_block,
        locked_first_and_accepted_in_a_savepoint,
        only_refused,
    ],
)
def test_r20_owner_that_overstays_in_a_transaction_is_found_and_ended(
    worker: Worker,
    rival: Worker,
    database: Database,
    observer: psycopg.Connection[Any],
    hold: Callable[[Worker, str], None],
) -> None:
    registry = database.connect("registry")
    held = worker.acquire(RESOURCE)
    worker.conn.execute("begin")
    hold(worker, held.token)
    no_timeouts(worker)
    assert rival.ask(RESOURCE, "next").state == "WAIT"
    assert registry.execute(OVERDUE).fetchall() == []
    end_lease(database, held.lease)
    future = in_background(lambda: rival.ask(RESOURCE, "next"))
    wait_until_blocked(observer, rival.pid)
    assert registry.execute(OVERDUE).fetchall() == [(worker.pid, RESOURCE)]
    observer.execute("select pg_terminate_backend(%s)", [worker.pid])
    assert future.result(PATIENCE).state == "SIGNING"
    assert registry.execute(OVERDUE).fetchall() == []
    assert fence_row(database, RESOURCE).highest_fence == 0


def test_r20_owner_that_waits_for_something_else_meanwhile_is_found_too(
    worker: Worker, rival: Worker, database: Database, observer: psycopg.Connection[Any]
) -> None:
    held = worker.acquire(RESOURCE)
    helper = database.connect("worker_a")
    helper.execute("select pg_advisory_lock(77)")
    worker.conn.execute("begin")
    plainly(worker, held.token)
    no_timeouts(worker)
    stuck = in_background(lambda: worker.conn.execute("select pg_advisory_xact_lock(77)"))
    wait_until_blocked(observer, worker.pid)
    rival.ask(RESOURCE, "next")
    end_lease(database, held.lease)
    future = in_background(lambda: rival.ask(RESOURCE, "next"))
    wait_until_blocked(observer, rival.pid)
    assert database.connect("registry").execute(OVERDUE).fetchall() == [(worker.pid, RESOURCE)]
    observer.execute("select pg_terminate_backend(%s)", [worker.pid])
    assert future.result(PATIENCE).state == "SIGNING"
    with pytest.raises(psycopg.OperationalError):
        stuck.result(PATIENCE)


def test_r20_session_whose_workload_was_removed_is_found_too(
    worker: Worker, rival: Worker, database: Database, observer: psycopg.Connection[Any]
) -> None:
    held = worker.acquire(RESOURCE)
    worker.conn.execute("begin")
    plainly(worker, held.token)
    no_timeouts(worker)
    rival.ask(RESOURCE, "next")
    as_owner(database, "select pgfence.remove_workload('worker_a')")
    end_lease(database, held.lease)
    future = in_background(lambda: rival.ask(RESOURCE, "next"))
    wait_until_blocked(observer, rival.pid)
    assert database.connect("registry").execute(OVERDUE).fetchall() == [(worker.pid, RESOURCE)]
    observer.execute("select pg_terminate_backend(%s)", [worker.pid])
    assert future.result(PATIENCE).state == "SIGNING"


@pytest.mark.parametrize("role", ["dba", "registry", "the superuser"])
def test_r20_control_who_takes_fence_rows_without_being_a_workload_is_never_found(
    worker: Worker,
    rival: Worker,
    database: Database,
    observer: psycopg.Connection[Any],
    role: str,
) -> None:
    held = worker.ask(RESOURCE)
    rival.ask(RESOURCE, "next")
    end_lease(database, held.lease)
    other = observer if role == "the superuser" else database.connect(role)
    other.execute("begin")
    if role == "registry":
        other.execute("select pgfence_registry.refuse_signature(%s)", [held.lease])
    else:
        other.execute("set local role pgfence_owner")
        other.execute("select from pgfence.fences for no key update")
    future = in_background(lambda: rival.ask(RESOURCE, "next"))
    wait_until_blocked(database.watcher, rival.pid)
    assert database.connect("registry").execute(OVERDUE).fetchall() == []
    other.execute("commit")
    assert future.result(PATIENCE).state == "SIGNING"


def test_r20_control_owner_whose_lease_runs_is_never_found(
    worker: Worker, database: Database, keys: Keys, observer: psycopg.Connection[Any]
) -> None:
    twin = Worker.login(database, keys, "worker_a")
    held = worker.acquire(RESOURCE)
    worker.conn.execute("begin")
    plainly(worker, held.token)
    future = in_background(lambda: twin.apply(held.token, 2))
    wait_until_blocked(observer, twin.pid)
    assert database.connect("registry").execute(OVERDUE).fetchall() == []
    worker.conn.execute("commit")
    assert future.result(PATIENCE).verdict == "ACCEPTED"


@pytest.mark.parametrize("savepoint", [False, True])
def test_r20_renewal_in_an_open_transaction_is_found(
    worker: Worker,
    rival: Worker,
    database: Database,
    observer: psycopg.Connection[Any],
    savepoint: bool,
) -> None:
    registry = database.connect("registry")
    held = worker.acquire(RESOURCE)

    def steps() -> None:
        worker.conn.execute("savepoint s")
        assert worker.renew(held.lease).state == "HELD"
        if savepoint:
            worker.conn.execute("release s")
        no_timeouts(worker)

    begin_before_the_end(worker, held.lease, steps)
    wait_until(
        lambda: rival.ask(RESOURCE, "next").reason == "the lease is being renewed",
        "only the renewal in flight holds the resource",
    )
    assert registry.execute(OVERDUE).fetchall() == [(worker.pid, RESOURCE)]
    observer.execute("select pg_terminate_backend(%s)", [worker.pid])
    wait_until_state(observer, worker.pid, None)
    assert rival.ask(RESOURCE, "next").state == "SIGNING"


@pytest.mark.parametrize(
    "change", [f"select pgfence.resume('{RESOURCE}')", "select pgfence.use_registry_elsewhere()"]
)
def test_r20_renewal_in_an_open_transaction_holds_up_no_operator_after_its_lease(
    worker: Worker, database: Database, observer: psycopg.Connection[Any], change: str
) -> None:
    registry = database.connect("registry")
    dba = database.connect("dba")
    held = worker.acquire(RESOURCE)
    as_owner(database, "update pgfence.fences set paused_because = 'a test'")

    def steps() -> None:
        assert worker.renew(held.lease).state == "HELD"
        no_timeouts(worker)

    with worker.transaction():  # control: its lease runs
        steps()
        future = in_background(lambda: dba.execute(change.encode()))
        wait_until_blocked(observer, dba.info.backend_pid)
        assert registry.execute(OVERDUE).fetchall() == []
        dba.cancel()
    with pytest.raises(psycopg.errors.QueryCanceled):
        future.result(PATIENCE)

    begin_before_the_end(worker, held.lease, steps)
    future = in_background(lambda: dba.execute(change.encode()))
    wait_until(
        lambda: registry.execute(OVERDUE).fetchall() == [(worker.pid, RESOURCE)],
        "the renewal is found",
    )
    observer.execute("select pg_terminate_backend(%s)", [worker.pid])
    future.result(PATIENCE)


#: What any role may take: the advisory lock by which a session shows what it is busy with.
TAKE_MARK = "select pg_advisory_lock(hashtext('pgfence ' || %s), %s)"


def test_r20_advisory_lock_of_another_session_hides_no_renewal(
    worker: Worker, rival: Worker, database: Database
) -> None:
    registry = database.connect("registry")
    held = worker.acquire(RESOURCE)
    database.connect("outsider").execute(TAKE_MARK, [held.lease, worker.pid])

    def steps() -> None:
        assert worker.renew(held.lease).state == "HELD"
        no_timeouts(worker)

    begin_before_the_end(worker, held.lease, steps)
    wait_until(
        lambda: rival.ask(RESOURCE, "next").reason == "the lease is being renewed",
        "only the renewal in flight holds the resource",
    )
    assert registry.execute(OVERDUE).fetchall() == [(worker.pid, RESOURCE)]


def test_r20_advisory_lock_of_another_session_hides_no_request_for_a_new_resource(
    worker: Worker, rival: Worker, database: Database
) -> None:
    """Nor is who waits in an open transaction taken for the one who is waited for."""
    forger = database.connect("outsider")
    forger.execute(TAKE_MARK, [RESOURCE, worker.pid])
    worker.conn.execute("begin")
    worker.ask(RESOURCE, "mine")
    no_timeouts(worker)
    rival.ask(RESOURCE, "theirs")
    rival.conn.execute("begin")
    assert rival.ask(RESOURCE, "theirs").reason == "a transaction on the resource is still open"
    assert database.connect("registry").execute(OVERDUE).fetchall() == [(worker.pid, RESOURCE)]
    forger.close()
    assert database.connect("registry").execute(OVERDUE).fetchall() == [(worker.pid, RESOURCE)]


def test_r20_control_past_owner_that_renewed_nothing_is_not_found(
    worker: Worker, rival: Worker, database: Database, observer: psycopg.Connection[Any]
) -> None:
    held = worker.acquire(RESOURCE)
    rival.ask(RESOURCE, "next")
    end_lease(database, held.lease)
    observer.execute("begin")
    observer.execute("select from pgfence.fences for no key update")
    worker.conn.execute("begin")
    assert worker.renew(held.lease).state == "EXPIRED"
    future = in_background(lambda: rival.ask(RESOURCE, "next"))
    wait_until_blocked(database.watcher, rival.pid)
    assert database.connect("registry").execute(OVERDUE).fetchall() == []
    observer.execute("commit")
    assert future.result(PATIENCE).state == "SIGNING"


def test_r20_request_for_a_new_resource_in_an_open_transaction_is_found(
    worker: Worker, rival: Worker, database: Database, observer: psycopg.Connection[Any]
) -> None:
    registry = database.connect("registry")
    worker.conn.execute("begin")
    worker.ask(RESOURCE, "mine")
    no_timeouts(worker)
    assert rival.ask(RESOURCE, "theirs").reason == "a transaction on the resource is still open"
    assert registry.execute(OVERDUE).fetchall() == [(worker.pid, RESOURCE)]
    observer.execute("select pg_terminate_backend(%s)", [worker.pid])
    wait_until_state(observer, worker.pid, None)
    assert rival.ask(RESOURCE, "theirs").state == "SIGNING"


def test_r20_first_request_after_a_failover_in_an_open_transaction_is_found(
    worker: Worker, rival: Worker, database: Database, observer: psycopg.Connection[Any]
) -> None:
    """It holds the configuration, for which every other request waits, whatever it asks for."""
    registry = database.connect("registry")
    as_owner(database, "update pgfence.configuration set timeline = '0000FFFF'")
    worker.conn.execute("begin")
    worker.ask(RESOURCE)
    no_timeouts(worker)
    future = in_background(lambda: rival.ask("another"))
    wait_until_blocked(observer, rival.pid)
    assert registry.execute(OVERDUE).fetchall() == [(worker.pid, None)]
    observer.execute("select pg_terminate_backend(%s)", [worker.pid])
    assert future.result(PATIENCE).state == "SIGNING"


def test_r20_control_who_has_a_right_to_the_configuration_is_never_found(
    worker: Worker, database: Database, observer: psycopg.Connection[Any]
) -> None:
    """Admitted outside READ COMMITTED, it keeps a change of the configuration waiting: rightly."""
    held = worker.acquire(RESOURCE)
    with worker.transaction("repeatable read"):
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        dba = database.connect("dba")
        future = in_background(lambda: dba.execute("select pgfence.remove_workload('worker_b')"))
        wait_until_blocked(observer, dba.info.backend_pid)
        assert database.connect("registry").execute(OVERDUE).fetchall() == []
    future.result(PATIENCE)


def test_r20_first_request_after_a_failover_limits_its_transaction(
    worker: Worker, rival: Worker, database: Database
) -> None:
    """Also where it is answered WAIT at once: another request is before it."""
    rival.acquire(RESOURCE)
    rival.ask(RESOURCE)
    with worker.transaction():
        assert worker.ask(RESOURCE, "mine").state == "WAIT"
        assert worker.call("show idle_in_transaction_session_timeout") == ("0",)
    as_owner(database, "update pgfence.configuration set timeline = '0000FFFF'")
    with worker.transaction():
        worker.ask(RESOURCE, "mine")
        assert worker.call("show idle_in_transaction_session_timeout") != ("0",)


def test_r20_prepared_transaction_that_holds_up_a_successor_is_shown_without_a_session(
    worker: Worker, rival: Worker, database: Database, observer: psycopg.Connection[Any]
) -> None:
    held = worker.acquire(RESOURCE)
    worker.conn.execute("begin")
    plainly(worker, held.token)
    worker.conn.execute(f"prepare transaction '{database.name}'")
    rival.ask(RESOURCE, "next")
    end_lease(database, held.lease)
    future = in_background(lambda: rival.ask(RESOURCE, "next"))
    wait_until_blocked(observer, rival.pid)
    assert database.connect("registry").execute(OVERDUE).fetchall() == [(None, RESOURCE)]
    worker.conn.execute(f"rollback prepared '{database.name}'")
    assert future.result(PATIENCE).state == "SIGNING"


PAST_OWNER = {
    "releases again": lambda worker, held: worker.release(held.lease),
    "replays": lambda worker, held: worker.apply(held.token, 1),
    "conflicts": lambda worker, held: worker.apply(held.token, 1, "other"),
    "goes on": lambda worker, held: worker.apply(held.token, 2),
    "advances": lambda worker, held: worker.advance(held.token),
    "renews": lambda worker, held: worker.renew(held.lease),
    "looks": lambda worker, held: worker.look(held.lease),
}


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("does", PAST_OWNER)
def test_r10_past_owner_takes_no_lock_that_the_present_one_needs(
    worker: Worker, rival: Worker, database: Database, does: str, written: bool
) -> None:
    old = worker.acquire(RESOURCE)
    plainly(worker, old.token)
    end_lease(database, old.lease)
    new = rival.acquire(RESOURCE)
    if written:
        plainly(rival, new.token)
    worker.conn.execute("begin")
    PAST_OWNER[does](worker, old)
    rival.conn.execute("set lock_timeout = '2s'")
    assert rival.apply(new.token, 2 if written else 1).verdict == "ACCEPTED"
    assert rival.renew(new.lease).state == "HELD"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_r9_refused_session_with_an_old_snapshot_does_not_hold_up_a_change_of_configuration(
    worker: Worker, database: Database, level: str
) -> None:
    held = worker.acquire(RESOURCE)
    worker.conn.execute(f"begin isolation level {level}")
    assert worker.apply(held.token, 5).verdict == "SEGMENT_GAP"
    with psycopg.connect(database.dsn("dba"), options="-c lock_timeout=2s") as dba:
        dba.execute("select pgfence.remove_workload('worker_a')")


@pytest.mark.parametrize(
    "change",
    [
        "select pgfence.remove_workload('worker_a')",
        "select pgfence.set_policy('invoice-batch/', array['none'])",
        "select pgfence.enforce('invoice-batch/')",
    ],
)
def test_r9_admitted_session_with_an_old_snapshot_that_holds_up_its_own_removal_is_named(
    worker: Worker, database: Database, observer: psycopg.Connection[Any], change: str
) -> None:
    """What it was admitted by may not change before it is over; doctor says who it is."""
    (check,) = (check for check in CHECKS if check.code == "CHANGE_HELD_UP")
    sooner = replace(check, query=check.query.replace("10 seconds", "0 seconds"))
    auditor = database.connect("auditor")
    held = worker.acquire(RESOURCE)
    administrator = database.connect("dba")
    administrator.execute("set role pgfence_owner")
    worker.conn.execute("begin")  # control: READ COMMITTED holds nobody up
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    with administrator.transaction(force_rollback=True):
        administrator.execute(change.encode())
    worker.conn.execute("commit")

    worker.conn.execute("begin isolation level repeatable read")
    assert worker.apply(held.token, 2).verdict == "ACCEPTED"
    no_timeouts(worker)
    future = in_background(lambda: administrator.execute(change.encode()))
    wait_until_blocked(observer, administrator.info.backend_pid)
    assert doctor.examine(auditor, [check]).findings == ()
    wait_until(lambda: doctor.examine(auditor, [sooner]).findings != (), "it is found")
    (found,) = doctor.examine(auditor, [sooner]).findings
    assert found.object == f"session {worker.pid}"
    end = str(found.step).rpartition(": ")[2]
    assert end == f"select pg_terminate_backend({worker.pid});"
    observer.execute(end.encode())
    future.result(PATIENCE)
    assert doctor.examine(auditor, [sooner]).findings == ()
    assert fence_row(database, RESOURCE).last_segment == 1


def test_r36_withdrawal_that_commits_while_the_request_is_asked_again_is_final(
    worker: Worker, database: Database, keys: Keys, observer: psycopg.Connection[Any]
) -> None:
    holder = Worker.login(database, keys, "worker_b")
    held = holder.acquire(RESOURCE)
    assert worker.ask(RESOURCE, "mine").state == "WAIT"
    twin = Worker.login(database, keys, "worker_a")
    twin.conn.execute("begin")
    twin.call("select * from pgfence_registry.withdraw('mine')")
    future = in_background(lambda: worker.ask(RESOURCE, "mine"))
    wait_until_blocked(observer, worker.pid)
    holder.release(held.lease)
    twin.conn.execute("commit")
    assert future.result(PATIENCE).state == "WITHDRAWN"
    assert fence_row(database, RESOURCE).issued_fence == held.fence_token


def test_r34_one_grant_for_a_request_that_is_asked_twice_at_once(
    worker: Worker, database: Database, keys: Keys, observer: psycopg.Connection[Any]
) -> None:
    twin = Worker.login(database, keys, "worker_a")
    twin.conn.execute("begin")
    first = twin.ask(RESOURCE, "mine")
    twin.release(first.lease)
    future = in_background(lambda: worker.ask(RESOURCE, "mine"))
    wait_until_blocked(observer, worker.pid)
    twin.conn.execute("commit")
    again = future.result(PATIENCE)
    assert (again.state, again.lease) == ("RELEASED", first.lease)
    assert fence_row(database, RESOURCE).issued_fence == 1


def test_r11_operation_root_of_another_request_cannot_be_used_up(
    worker: Worker, rival: Worker
) -> None:
    ask = "select * from pgfence_registry.request(%s, %s, 'settle', %s, 1000)"
    root = "sha256:" + "5" * 64
    worker.call(ask, ["mine", RESOURCE, root])
    for thief, request_id in ((rival, "theirs"), (rival, "mine"), (worker, "another")):
        with pytest.raises(psycopg.Error) as caught:
            thief.call(ask, [request_id, RESOURCE, root])
        assert caught.value.sqlstate == "PF303"
    assert rival.call(ask, ["theirs", "elsewhere", root]).state == "SIGNING"


def test_r36_waiter_that_was_silent_for_too_long_goes_to_the_end_of_the_queue(
    worker: Worker, rival: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    rival.ask(RESOURCE, "silent")
    worker.ask(RESOURCE, "patient")
    as_owner(
        database,
        "update pgfence_registry.requests set alive_until = clock_timestamp()"
        " where request_id = 'silent'",
    )
    rival.ask(RESOURCE, "silent")
    worker.release(held.lease)
    assert rival.ask(RESOURCE, "silent").reason == "another request is before this one"
    assert worker.ask(RESOURCE, "patient").state == "SIGNING"


def test_r53_owner_that_asks_for_very_much_does_not_keep_others_from_their_signature(
    worker: Worker, rival: Worker, database: Database
) -> None:
    for number in range(150):
        worker.ask(f"flood/{number}")
    wanted = rival.ask(RESOURCE)
    registry = database.connect("registry")
    pending = registry.execute("select lease from pgfence_registry.unsigned_grants()").fetchall()
    assert len(pending) == 100
    assert (wanted.lease,) in pending[:2]


def test_r53_owner_that_keeps_its_unsigned_grant_locked_keeps_nobody_from_a_signature(
    worker: Worker, rival: Worker, database: Database, keys: Keys
) -> None:
    registry = database.connect("registry", options="-c lock_timeout=10s")
    kept = rival.ask("kept/1")
    wanted = worker.ask(RESOURCE)
    rival.conn.execute("begin")
    assert rival.release(kept.lease).state == "RELEASED"
    recorded = {each.lease: each.recorded for each in Issuer(keys.grant).sign_pending(registry)}
    assert recorded == {kept.lease: False, wanted.lease: True}
    rival.conn.execute("rollback")
    recorded = {each.lease: each.recorded for each in Issuer(keys.grant).sign_pending(registry)}
    assert recorded == {kept.lease: True}


def test_r18_owner_with_many_refusals_pushes_out_only_its_own(
    worker: Worker, rival: Worker, database: Database, keys: Keys
) -> None:
    grant = grant_of(worker.acquire(RESOURCE).token)
    rival.apply(forge(grant, keys), 1)
    for number in range(200):
        worker.apply(forge(grant, keys, lease=f"l-{number}"), 1)
    with psycopg.connect(database.dsn("auditor")) as auditor:
        rows = auditor.execute(
            "select session_role, count(*) from pgfence.refusals where occurrences > 0 group by 1"
        ).fetchall()
    assert dict(rows) == {"worker_a": 128, "worker_b": 1}
