"""A lease that ends while a transaction is open (R19, R20); what waits for what (R9, R51, R52)."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest

from tests.support import PATIENCE, Database, Keys, wait_until, wait_until_blocked, wait_until_state
from tests.workers import (
    Worker,
    as_owner,
    begin_before_the_end,
    fence_row,
    forge,
    grant_of,
    in_background,
    lease_is_over,
    no_timeouts,
    waits_for_a_lock,
)

RESOURCE = "invoice-batch/2026-07-19"
SNAPSHOT_LEVELS = ["repeatable read", "serializable"]
LEVELS = ["read committed", *SNAPSHOT_LEVELS]


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture
def rival(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_b")


@pytest.fixture
def observer(database: Database) -> psycopg.Connection[Any]:
    return database.connect()


def wait_until_past(database: Database, lease: str) -> None:
    """Until the registry's clock has passed the end of a lease."""
    wait_until(lambda: lease_is_over(database, lease), f"lease {lease} is over")


def admit_before_the_end(
    worker: Worker, held: Any, *statements: str, level: str = "read committed"
) -> None:
    """A first segment shortly before the lease ends, without time-outs, and some statements."""

    def steps() -> None:
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        no_timeouts(worker)
        for statement in statements:
            worker.conn.execute(statement)

    begin_before_the_end(worker, held.lease, steps, level)


@pytest.mark.parametrize("level", LEVELS)
def test_r19_lease_that_ended_before_commit_fails_the_commit(
    worker: Worker, database: Database, level: str
) -> None:
    held = worker.acquire(RESOURCE)
    admit_before_the_end(worker, held, level=level)
    wait_until_past(database, held.lease)
    with pytest.raises(psycopg.Error) as caught:
        worker.conn.execute("commit")
    assert caught.value.sqlstate == "PF203"
    assert fence_row(database, RESOURCE).highest_fence == 0


@pytest.mark.parametrize("late", [True, False])
def test_r19_advancing_another_grant_in_the_transaction_does_not_skip_the_look_at_commit(
    worker: Worker, database: Database, keys: Keys, observer: psycopg.Connection[Any], late: bool
) -> None:
    """With a distant registry one transaction may hold two grants. In time is the control."""
    claims = grant_of(worker.acquire(RESOURCE).token)
    as_owner(database, "update pgfence.configuration set registry_is_local = false")
    second = forge(
        claims,
        keys,
        fence_token=claims.fence_token + 1,
        operation_root=f"sha256:{'1' * 64}",
        status_until=claims.issued_at + 600_000_000,
    )
    now = worker.call("select (extract(epoch from clock_timestamp()) * 1000000)::bigint as at").at
    ends_at = now + (3_000_000 if late else 600_000_000)
    first = forge(claims, keys, status_until=ends_at)
    worker.conn.execute("begin")
    assert worker.apply(first, 1).verdict == "ACCEPTED"
    no_timeouts(worker)
    assert worker.advance(second).verdict == "ADVANCED"
    if not late:
        worker.conn.execute("/* in words of its own */ commit")
        return
    past = "select extract(epoch from clock_timestamp()) * 1000000 > %s"
    wait_until(lambda: observer.execute(past, [ends_at]).fetchone() == (True,), "it is over")
    with pytest.raises(psycopg.Error) as caught:
        worker.conn.execute("/* in words of its own */ commit")
    assert caught.value.sqlstate == "PF203"


@pytest.mark.parametrize("level", LEVELS)
def test_r19_control_lease_that_still_runs_lets_the_commit_through(
    worker: Worker, database: Database, level: str
) -> None:
    held = worker.acquire(RESOURCE)
    with worker.transaction(level):
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    assert fence_row(database, RESOURCE).highest_fence == 1


@pytest.mark.parametrize(
    "trick",
    [
        ["set constraints all immediate"],
        ["set constraints pgfence.look_at_commit immediate"],
        ["set constraints all immediate", "set constraints all immediate"],
        ["set constraints all immediate; set constraints all deferred"],
        ["savepoint s", "set constraints all immediate", "rollback to s"],
        ["savepoint s", "set constraints all immediate", "release s"],
        ["do $$ begin set constraints all immediate; end $$"],
        [
            (
                "do $$ begin begin set constraints all immediate; perform 1/0;"
                " exception when division_by_zero then null; end; end $$"
            )
        ],
        ["set constraints all deferred"],
    ],
    ids=lambda trick: " / ".join(trick)[:60],
)
def test_r19_set_constraints_does_not_skip_the_look_at_commit(
    worker: Worker, database: Database, trick: list[str]
) -> None:
    held = worker.acquire(RESOURCE)
    admit_before_the_end(worker, held, *trick)
    wait_until_past(database, held.lease)
    with pytest.raises(psycopg.Error) as caught:
        worker.conn.execute("commit")
    assert caught.value.sqlstate == "PF203"
    assert fence_row(database, RESOURCE).highest_fence == 0


def test_r19_control_constraints_set_immediate_in_time_let_the_commit_through(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    with worker.transaction():
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        worker.conn.execute("set constraints all immediate")
        assert worker.apply(held.token, 2).verdict == "ACCEPTED"
        worker.conn.execute("set constraints all immediate")
    assert fence_row(database, RESOURCE).last_segment == 2
    with worker.transaction():
        assert worker.apply(held.token, 3).verdict == "ACCEPTED"


def test_r19_constraints_set_immediate_inside_a_trigger_are_noticed_too(
    worker: Worker, database: Database
) -> None:
    owner = database.connect("billing_owner")
    owner.execute("create table notes (n integer)")
    owner.execute("grant insert on notes to worker_a")
    owner.execute(
        "create function set_immediate() returns trigger language plpgsql as"
        " $$ begin set constraints all immediate; return new; end $$"
    )
    owner.execute(
        "create trigger set_immediate after insert on notes"
        " for each row execute function set_immediate()"
    )
    held = worker.acquire(RESOURCE)
    admit_before_the_end(worker, held, "insert into notes values (1)")
    wait_until_past(database, held.lease)
    with pytest.raises(psycopg.Error) as caught:
        worker.conn.execute("commit")
    assert caught.value.sqlstate == "PF203"


def test_r19_two_resources_each_have_their_look(worker: Worker, database: Database) -> None:
    long, short = worker.acquire("a-long"), worker.acquire("b-short")

    def steps() -> None:
        assert worker.apply(long.token, 1).verdict == "ACCEPTED"
        assert worker.apply(short.token, 1).verdict == "ACCEPTED"
        no_timeouts(worker)

    begin_before_the_end(worker, short.lease, steps)
    wait_until_past(database, short.lease)
    with pytest.raises(psycopg.Error) as caught:
        worker.conn.execute("commit")
    assert caught.value.sqlstate == "PF203"
    assert fence_row(database, "a-long").highest_fence == 0


def test_r19_release_in_the_same_transaction_does_not_fail_it(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    with worker.transaction():
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        assert worker.release(held.lease).state == "RELEASED"
    assert fence_row(database, RESOURCE).highest_fence == 1


def test_r19_look_happens_at_prepare_and_commit_prepared_is_final(
    worker: Worker, database: Database
) -> None:
    held = worker.acquire(RESOURCE)
    admit_before_the_end(worker, held, f"prepare transaction '{database.name}'")
    wait_until_past(database, held.lease)
    worker.conn.execute(f"commit prepared '{database.name}'")
    assert fence_row(database, RESOURCE).highest_fence == 1
    late = worker.acquire(RESOURCE)
    admit_before_the_end(worker, late)
    wait_until_past(database, late.lease)
    with pytest.raises(psycopg.Error) as caught:
        worker.conn.execute(f"prepare transaction '{database.name}'")
    assert caught.value.sqlstate == "PF203"


def test_r20_renewing_meanwhile_does_not_prolong_the_transaction(
    worker: Worker, database: Database, keys: Keys, observer: psycopg.Connection[Any]
) -> None:
    renewer = Worker.login(database, keys, "worker_a")
    held = worker.acquire(RESOURCE)
    ends = []

    def steps() -> None:
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        no_timeouts(worker)
        ends.append(renewer.look(held.lease).lease_ends_at)
        renewed = renewer.renew(held.lease)
        assert renewed.state == "HELD"
        assert renewed.lease_ends_at > ends[-1]

    begin_before_the_end(worker, held.lease, steps)
    past = "select clock_timestamp() > %s"
    wait_until(
        lambda: observer.execute(past, ends[-1:]).fetchone() == (True,),
        "the first end of the lease has passed",
    )
    with pytest.raises(psycopg.Error) as caught:
        worker.conn.execute("commit")
    assert caught.value.sqlstate == "PF203"
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"


def test_r20_admission_limits_the_session_to_what_is_left_and_keeps_a_shorter_time_out(
    worker: Worker,
) -> None:
    show = "select current_setting('idle_in_transaction_session_timeout')::interval as idle"
    held = worker.acquire(RESOURCE, ttl_ms=60_000)
    with worker.transaction():
        worker.apply(held.token, 1)
        assert 50 < worker.call(show).idle.total_seconds() <= 60
    assert worker.call(show).idle.total_seconds() == 0
    with worker.transaction():
        worker.conn.execute("set local idle_in_transaction_session_timeout = '5s'")
        worker.apply(held.token, 2)
        assert worker.call(show).idle.total_seconds() == 5
    with worker.transaction():
        worker.conn.execute("set local idle_in_transaction_session_timeout = '2h'")
        worker.apply(held.token, 3)
        assert 50 < worker.call(show).idle.total_seconds() <= 60
    if worker.conn.info.server_version >= 170000:
        show = "select current_setting('transaction_timeout')::interval as busy"
        with worker.transaction():
            worker.apply(held.token, 4)
            assert 50 < worker.call(show).busy.total_seconds() <= 60
        for segment, own, remains in ((5, "20s", 20), (6, "2h", 60)):
            with worker.transaction():
                worker.conn.execute(f"set local transaction_timeout = '{own}'")
                worker.apply(held.token, segment)
                assert remains - 10 < worker.call(show).busy.total_seconds() <= remains


def test_r20_timer_of_the_transaction_that_runs_is_shortened(
    worker: Worker, observer: psycopg.Connection[Any]
) -> None:
    if worker.conn.info.server_version < 170000:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    held = worker.acquire(RESOURCE)

    def steps() -> None:
        worker.conn.execute("set local transaction_timeout = '2h'")
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        worker.conn.execute("set local idle_in_transaction_session_timeout = 0")

    begin_before_the_end(worker, held.lease, steps)
    wait_until_state(observer, worker.pid, None)
    with pytest.raises(psycopg.Error) as caught:
        worker.conn.execute("commit")
    assert caught.value.sqlstate == "25P04"


def test_r20_idle_owner_is_ended_by_the_server_when_its_lease_is_over(
    worker: Worker, rival: Worker, database: Database, observer: psycopg.Connection[Any]
) -> None:
    held = worker.acquire(RESOURCE)
    said: list[str | None] = []

    def steps() -> None:
        worker.conn.add_notice_handler(lambda notice: said.append(notice.sqlstate))
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"

    begin_before_the_end(worker, held.lease, steps)
    wait_until_state(observer, worker.pid, None)
    assert rival.acquire(RESOURCE).state == "HELD"
    with pytest.raises(psycopg.Error) as caught:
        worker.conn.execute("commit")
    # libpq takes the server's last word for a notice where it comes with the answer to a call.
    assert {caught.value.sqlstate, *said} & {"25P03", "25P04"}
    assert fence_row(database, RESOURCE).highest_fence == 0


@pytest.mark.parametrize("level", LEVELS)
def test_r9_lease_that_ends_while_the_call_waits_for_the_fence_row_is_not_held(
    worker: Worker, database: Database, keys: Keys, observer: psycopg.Connection[Any], level: str
) -> None:
    held = worker.acquire(RESOURCE)
    holder = database.connect(autocommit=False)
    holder.execute("set role pgfence_owner")
    holder.execute("select from pgfence.fences where resource = %s for no key update", [RESOURCE])
    second = Worker.login(database, keys, "worker_a")
    calls: list[Future[Any]] = []

    def steps() -> None:
        calls.append(in_background(lambda: second.apply(held.token, 1)))
        assert waits_for_a_lock(observer, second.pid, calls[-1])

    begin_before_the_end(second, held.lease, steps, level)
    future = calls[-1]
    wait_until_past(database, held.lease)
    holder.rollback()
    if level == "read committed":
        verdict = future.result(PATIENCE)
        assert (verdict.verdict, verdict.reason) == ("NOT_HELD", "EXPIRED")
    else:
        with pytest.raises(psycopg.errors.SerializationFailure):
            future.result(PATIENCE)


@pytest.mark.parametrize("level", LEVELS)
def test_r51_old_owner_with_an_old_snapshot_never_commits_after_the_new_one(
    worker: Worker,
    rival: Worker,
    database: Database,
    level: str,
) -> None:
    old = worker.acquire(RESOURCE)
    assert worker.apply(old.token, 1).verdict == "ACCEPTED"
    second = Worker.login(database, worker.keys, "worker_a")
    second.conn.execute(f"begin isolation level {level}")
    second.conn.execute("select count(*) from pg_class")  # takes the snapshot
    worker.release(old.lease)
    new = rival.acquire(RESOURCE)
    assert rival.apply(new.token, 1).verdict == "ACCEPTED"
    if level == "read committed":
        assert second.apply(old.token, 2).verdict == "STALE_OWNER"
        second.conn.execute("commit")
    else:
        with pytest.raises(psycopg.errors.SerializationFailure):
            second.apply(old.token, 2)
        second.conn.execute("rollback")
    assert fence_row(database, RESOURCE).highest_fence == new.fence_token


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
@pytest.mark.parametrize(
    "change",
    [
        "select pgfence.set_policy('unrelated/', null)",
        "select pgfence.remove_workload('worker_b')",
        "update pgfence.configuration set version = version + 1",
    ],
)
def test_r9_change_of_policy_or_workload_after_the_snapshot_ends_in_40001(
    worker: Worker, database: Database, level: str, change: str
) -> None:
    held = worker.acquire(RESOURCE)
    worker.conn.execute(f"begin isolation level {level}")
    worker.conn.execute("select count(*) from pg_class")
    as_owner(database, change)
    with pytest.raises(psycopg.errors.SerializationFailure):
        worker.apply(held.token, 1)
    worker.conn.execute("rollback")
    with worker.transaction(level):
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
def test_r9_nor_is_a_segment_replayed_by_a_policy_that_is_no_longer_in_force(
    worker: Worker, database: Database, level: str
) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    worker.conn.execute(f"begin isolation level {level}")
    worker.conn.execute("select count(*) from pg_class")
    as_owner(database, "select pgfence.set_policy('invoice-batch/', null)")
    with pytest.raises(psycopg.errors.SerializationFailure):
        worker.apply(held.token, 1)
    worker.conn.execute("rollback")
    with worker.transaction(level):
        assert worker.apply(held.token, 1).verdict == "STALE_POLICY"


def test_r9_bundle_that_changes_while_the_call_waits_is_the_one_that_counts(
    worker: Worker, database: Database, observer: psycopg.Connection[Any]
) -> None:
    held = worker.acquire(RESOURCE)
    holder = database.connect(autocommit=False)
    holder.execute("set role pgfence_owner")
    holder.execute("select from pgfence.fences where resource = %s for no key update", [RESOURCE])
    future = in_background(lambda: worker.apply(held.token, 1))
    wait_until_blocked(observer, worker.pid)
    as_owner(database, "update pgfence.trust_keys set expires_at = clock_timestamp()")
    as_owner(database, "update pgfence.configuration set version = version + 1")
    holder.rollback()
    assert future.result(PATIENCE).verdict == "UNKNOWN_KEY"


def test_r52_next_owner_waits_for_the_open_segment_and_sees_what_it_wrote(
    worker: Worker, rival: Worker, database: Database, observer: psycopg.Connection[Any]
) -> None:
    held = worker.acquire(RESOURCE)
    assert rival.ask(RESOURCE, "next").state == "WAIT"
    admit_before_the_end(worker, held)
    wait_until_past(database, held.lease)
    future = in_background(lambda: rival.ask(RESOURCE, "next"))
    assert wait_until_blocked(observer, rival.pid) == [worker.pid]
    worker.conn.execute("rollback")
    assert future.result(PATIENCE).state == "SIGNING"


def test_r52_renewing_is_not_held_up_by_an_open_segment(
    worker: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    renewer = Worker.login(database, keys, "worker_a", options="-c lock_timeout=1s")
    worker.conn.execute("begin")
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    assert renewer.renew(held.lease).state == "HELD"
    worker.conn.execute("commit")


def test_r51_same_segment_from_two_sessions_at_once_is_applied_once(
    worker: Worker, database: Database, keys: Keys, observer: psycopg.Connection[Any]
) -> None:
    held = worker.acquire(RESOURCE)
    second = Worker.login(database, keys, "worker_a")
    worker.conn.execute("begin")
    first = worker.apply(held.token, 1, "page")
    future = in_background(lambda: second.apply(held.token, 1, "page"))
    wait_until_blocked(observer, second.pid)
    worker.conn.execute("commit")
    replay = future.result(PATIENCE)
    assert (replay.verdict, replay.receipt) == ("REPLAYED", first.receipt)


def test_lock_order_segments_renewals_releases_takeovers_and_policies_never_deadlock(
    database: Database, keys: Keys
) -> None:
    """Eight sessions, every kind of change, bounded rounds: no 40P01, and the chain is whole."""
    failures: list[str] = []

    def run(role: str, number: int) -> None:
        worker = Worker.login(database, keys, role)
        for round_number in range(6):
            try:
                held = worker.acquire(RESOURCE, f"{role}-{number}-{round_number}", ttl_ms=150)
                if held.state != "HELD":
                    worker.call("select * from pgfence_registry.withdraw(%s)", [held.request_id])
                    continue
                worker.conn.execute("begin")
                worker.renew(held.lease)
                worker.apply(held.token, 1)
                if round_number % 2:
                    worker.release(held.lease)
                worker.conn.execute("commit")
                worker.renew(held.lease)
                worker.apply(held.token, 2)
                worker.release(held.lease)
            except psycopg.Error as error:
                if error.sqlstate == "40P01":
                    failures.append(str(error))
                if worker.conn.closed:
                    worker = Worker.login(database, keys, role)
                else:
                    worker.conn.execute("rollback")

    def change_policies() -> None:
        for _ in range(10):
            as_owner(database, "select pgfence.set_policy('invoice-batch/', null)")

    threads = [
        threading.Thread(target=run, args=(role, number))
        for role in ("worker_a", "worker_b")
        for number in range(4)
    ]
    threads.append(threading.Thread(target=change_policies))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    checker = Worker.login(database, keys, "worker_a")
    assert checker.call("select * from pgfence.verify_receipts(%s)", [RESOURCE]).ok


def test_r13_clock_of_the_client_does_not_matter(worker: Worker) -> None:
    worker.conn.execute("set timezone = 'Pacific/Kiritimati'")
    worker.conn.execute("set datestyle = 'ISO, DMY'")
    held = worker.acquire(RESOURCE, ttl_ms=60_000)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    worker.conn.execute("set timezone = 'America/Adak'")
    assert worker.apply(held.token, 2).verdict == "ACCEPTED"
    assert grant_of(held.token).ttl_ms == 60_000


def test_r6_session_of_another_workload_takes_no_lock(worker: Worker, rival: Worker) -> None:
    held = worker.acquire(RESOURCE)
    rival.conn.execute("begin")
    assert rival.apply(held.token, 1).verdict == "NOT_OWNER"
    worker.conn.execute("set lock_timeout = '1s'")
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"


def test_r10_stale_owner_takes_no_lock(worker: Worker, rival: Worker) -> None:
    old = worker.acquire(RESOURCE)
    worker.apply(old.token, 1)
    worker.release(old.lease)
    new = rival.acquire(RESOURCE)
    rival.apply(new.token, 1)
    worker.conn.execute("begin")
    assert worker.apply(old.token, 2).verdict == "STALE_OWNER"
    rival.conn.execute("set lock_timeout = '1s'")
    assert rival.apply(new.token, 2).verdict == "ACCEPTED"
