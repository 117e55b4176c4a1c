"""Stale owners, as others have met them: what happened to them, and what happens here.

docs/scenarios.md has the reports.
"""

from __future__ import annotations

import pytest

import pgfence
from pgfence import tokens
from pgfence.errors import TokenRefusedError
from pgfence.model.grant import Grant
from tests.faults.failover.clusters import Copy, Standby
from tests.faults.failover.history import Side
from tests.guarded import BATCH, refused
from tests.proxy import proxy_to
from tests.registry import registry
from tests.scenarios.conftest import RESOURCE, Results
from tests.sql.test_resume_and_restored import regress
from tests.support import Database, Keys, wait_until, wait_until_blocked
from tests.workers import (
    Worker,
    as_owner,
    begin_before_the_end,
    end_lease,
    fence_row,
    grant_of,
    in_background,
    lease_is_over,
    no_timeouts,
)


@pytest.mark.rule("R36")
def test_etcd_11456_a_waiter_that_died_while_it_waited_gets_no_grant(results: Results) -> None:
    b, dead, c = (results.worker(role) for role in ("worker_b", "worker_a", "worker_a"))
    held = b.acquire(RESOURCE)
    assert dead.ask(RESOURCE, "dead").state == "WAIT"
    as_owner(
        results.database,
        "update pgfence_registry.requests set alive_until = clock_timestamp()"
        " where request_id = 'dead'",
    )
    b.release(held.lease)
    assert results.fences() == [1]
    assert c.acquire(RESOURCE, "c").fence_token == 2
    # It comes to itself, and is told the truth: it does not hold, and has lost its place.
    late = dead.ask(RESOURCE, "dead")
    assert (late.state, late.token) == ("WAIT", None)
    assert results.fences() == [1, 2]


@pytest.mark.rule("R36", "R38")
def test_etcd_9921_a_lease_begins_when_it_is_granted_however_long_its_owner_has_waited(
    results: Results,
) -> None:
    b, a = results.worker("worker_b"), results.worker("worker_a")
    for ttl_ms in (5_000, 30_000, 600_000):
        held = b.acquire(RESOURCE)
        request_id = f"waits-with-{ttl_ms}"
        assert a.ask(RESOURCE, request_id, ttl_ms=ttl_ms).state == "WAIT"
        as_owner(
            results.database,
            "update pgfence_registry.requests set asked_at = asked_at - interval '20 seconds'"
            " where state = 'WAITING'",
        )
        b.release(held.lease)
        answer = a.acquire(RESOURCE, request_id, ttl_ms=ttl_ms)
        assert answer.state == "HELD"
        assert 0 < answer.remaining_ms <= ttl_ms
        a.release(answer.lease)
    dead_on_arrival = results.database.connect().execute(
        "select count(*) from pgfence_registry.grants"
        " where lease_ends_at - granted_at <> ttl_ms * interval '1 millisecond'"
    )
    assert dead_on_arrival.fetchone() == (0,)
    assert results.fences() == sorted(set(results.fences()))


@pytest.mark.rule("R10", "R42", "R43")
def test_etcd_10811_a_client_that_is_cut_off_does_not_write_beside_the_new_owner(
    results: Results,
) -> None:
    database, b = results.database, results.worker("worker_b")
    with (
        registry(database, results.keys),
        proxy_to(database.dsn("worker_a")) as network,
        pgfence.connect(network.dsn) as fence,
        fence.hold(RESOURCE, operation="settle", ttl=3) as lease,
    ):
        lease.apply(
            "A's", lambda tx: tx.execute("insert into results values (%s, 'A')", [RESOURCE])
        )
        network.freeze()
        network.refuse_new()  # or a new connection might come just in time
        wait_until(lambda: lease.state is pgfence.State.EXPIRED, "A knows that its time is up")
        taken = b.acquire(RESOURCE)
        wait_until(lambda: b.ask(RESOURCE, taken.request_id).state == "HELD", "B holds it")
        token = b.ask(RESOURCE, taken.request_id).token
        assert results.write(b, token, 1, "B's") == "ACCEPTED"
        with pytest.raises(pgfence.NotHeldError):
            lease.apply("A's, late", lambda tx: pytest.fail("A's work ran"))
        # What it wrote past its own client, on a connection that was not cut, is refused too.
        assert results.write(results.worker("worker_a"), lease.token, 2, "A's") == "STALE_OWNER"
        network.cut()
    assert results.rows() == [("B's", "worker_b")]
    assert len(results.receipts()) == 2
    assert results.refusals() == [("STALE_OWNER", "worker_a")]


@pytest.mark.rule("R10", "R51")
def test_etcd_11429_two_masters_at_once_and_after_the_first_8_no_7_is_accepted(
    results: Results,
) -> None:
    """A thousand attempts of two sessions, each of which believes that it is the master."""
    owner = results.database.connect("billing_owner")
    owner.execute(
        "create table journal (n bigint generated always as identity, resource text, fence bigint)"
    )
    owner.execute("grant select, insert on journal to pgfence_app")
    owner.execute("select pgfence.protect('journal', '{resource}')")
    a, b = results.worker("worker_a"), results.worker("worker_b")
    as_owner(results.database, "insert into pgfence.fences (resource) values (%s)", [RESOURCE])
    as_owner(results.database, "update pgfence.fences set issued_fence = 6")
    seventh = a.acquire(RESOURCE)
    verdicts: dict[int, list[str]] = {7: [], 8: []}

    def master(worker: Worker, token: str, fence: int) -> None:
        while len(verdicts[fence]) < 500:
            segment = verdicts[fence].count("ACCEPTED") + 1
            with worker.transaction():
                verdict = worker.apply(token, segment).verdict
                if verdict == "ACCEPTED":
                    worker.conn.execute(
                        "insert into journal (resource, fence) values (%s, %s)", [RESOURCE, fence]
                    )
            verdicts[fence].append(verdict)

    first = in_background(lambda: master(a, seventh.token, 7))
    wait_until(lambda: len(verdicts[7]) >= 100, "the first master writes")
    end_lease(results.database, seventh.lease)

    def takes_over() -> bool:  # not while a transaction of the first master is open
        return bool(b.acquire(RESOURCE, "eighth").state == "HELD")

    wait_until(takes_over, "the second master holds")
    eighth = b.ask(RESOURCE, "eighth")
    assert (seventh.fence_token, eighth.fence_token) == (7, 8)
    master(b, eighth.token, 8)
    first.result()

    written = owner.execute("select fence from journal order by n").fetchall()
    assert written == sorted(written)
    assert verdicts[8] == ["ACCEPTED"] * 500
    accepted = verdicts[7].count("ACCEPTED")
    assert verdicts[7][:accepted] == ["ACCEPTED"] * accepted
    assert set(verdicts[7][accepted:]) <= {"NOT_HELD", "STALE_OWNER"}


@pytest.mark.rule("R3", "R37", "R40")
def test_dynamodb_lock_client_1_a_uuid_is_no_fence_token(results: Results) -> None:
    a = results.worker("worker_a")
    held = a.acquire(RESOURCE)
    claims = grant_of(held.token).encode()
    uuid = claims.replace(b'"fenceToken":1', b'"fenceToken":"4bf1c6f1-6a0c-4a0e-9d0b-0f6f5a3c9b11"')
    assert uuid != claims
    forged = tokens.sign(uuid, Grant.SCHEMA, results.keys.grant)
    assert a.apply(forged, 1).verdict == "MALFORMED"
    with pytest.raises(TokenRefusedError, match="MALFORMED"):
        Grant.parse(uuid)
    # The registry's own have an order, whoever the owner is.
    a.release(held.lease)
    for role in ("worker_b", "worker_a", "worker_a"):
        worker = results.worker(role)
        worker.release(worker.acquire(RESOURCE).lease)
    assert results.fences() == [1, 2, 3, 4]


@pytest.mark.rule("R9", "R38")
def test_shedlock_132_a_time_that_was_taken_before_a_pause_is_nowhere_used(
    results: Results,
) -> None:
    """The client sends no time at all, and the server takes none from before it got its locks."""
    a = results.worker("worker_a")
    with a.transaction():
        began = a.call("select now() as at").at
        a.conn.execute("select pg_sleep(0.2)")  # the pause, after "now" was taken
        a.ask(RESOURCE, "paused", ttl_ms=60_000)
    held = a.acquire(RESOURCE, "paused", ttl_ms=60_000)
    assert (held.lease_ends_at - began).total_seconds() >= 60.2
    # A looks at its lease, which is good, and is paused before it sends.
    assert a.look(held.lease).state == "HELD"
    end_lease(results.database, held.lease)
    assert results.write(a, held.token, 1, "late") == "NOT_HELD"


@pytest.mark.rule("R39")
def test_redisson_4822_after_a_failover_all_can_lock_again_but_the_old_holder_s_grant_is_gone(
    primary: Copy, standby: Standby, keys: Keys
) -> None:
    before = Side(primary.database, keys)
    held = before.acquire("worker_a", RESOURCE)
    assert held
    assert before.apply(held) == "ACCEPTED"
    standby.catch_up()
    primary.stop("immediate")
    standby.promote()

    after = Side(standby.database, keys)
    assert after.apply(held) == "REBIND_REQUIRED"
    epoch = "select issuer_epoch from pgfence.configuration"
    old_epoch = standby.execute(epoch)
    taken = after.acquire("worker_b", RESOURCE)
    assert taken
    assert taken.fence_token > held.fence_token
    assert standby.execute(epoch) > old_epoch
    assert after.apply(taken) == "ACCEPTED"
    assert after.offer(held, held.last_segment + 1) == "REVOKED_EPOCH"
    after.worker("worker_b").release(taken.lease)
    again = after.acquire("worker_a", RESOURCE)
    assert again
    assert again.fence_token == taken.fence_token + 1
    assert after.apply(again) == "ACCEPTED"


@pytest.mark.rule("R36")
def test_redis_py_1031_an_expired_owner_s_release_does_not_free_the_next_owner_s_lock(
    results: Results,
) -> None:
    a, b = results.worker("worker_a"), results.worker("worker_b")
    expired = a.acquire(RESOURCE)
    end_lease(results.database, expired.lease)
    held = b.acquire(RESOURCE)
    before = fence_row(results.database, RESOURCE)
    assert a.release(expired.lease).state == "SUPERSEDED"
    assert a.release(held.lease).state == "UNKNOWN"  # nor by naming the other's
    assert fence_row(results.database, RESOURCE) == before
    assert b.look(held.lease).state == "HELD"
    assert results.worker("worker_a").ask(RESOURCE).state == "WAIT"


@pytest.mark.rule("R10", "R37")
def test_etcd_16028_a_registry_that_was_put_back_is_a_regression_with_both_numbers(
    database: Database, keys: Keys
) -> None:
    """And one documented command resumes above the mark."""
    a = Worker.login(database, keys, "worker_a")
    as_owner(database, "insert into pgfence.fences (resource) values (%s)", [BATCH])
    as_owner(database, "update pgfence.fences set issued_fence = 990")
    low = regress(database, a, keys)
    because = fence_row(database, BATCH).paused_because
    assert "991" in because
    assert "1000" in because
    with refused("PF110") as paused:
        a.ask(BATCH)
    assert "then run: pgfence resume" in str(paused.diag.message_hint)
    Worker.login(database, keys, "dba").call("select * from pgfence.resume(%s, 'looked')", [BATCH])
    assert a.acquire(BATCH).fence_token == 1001
    assert a.apply(low.token, 1).verdict == "STALE_OWNER"


@pytest.mark.rule("R35")
def test_eventstore_176_an_owner_that_retakes_its_own_expired_lease_gets_a_higher_fence(
    results: Results,
) -> None:
    old_process, new_process = results.worker("worker_a"), results.worker("worker_a")
    old = old_process.acquire(RESOURCE)
    assert results.write(old_process, old.token, 1, "old") == "ACCEPTED"
    end_lease(results.database, old.lease)
    new = new_process.acquire(RESOURCE)
    assert new.fence_token == old.fence_token + 1
    assert results.write(new_process, new.token, 1, "new") == "ACCEPTED"
    assert results.write(old_process, old.token, 2, "old again") == "STALE_OWNER"
    assert results.rows() == [("new", "worker_a")]


@pytest.mark.rule("R12", "R24")
def test_govuk_puppet_7920_two_pooled_workers_send_the_same_e_mail_once(results: Results) -> None:
    owner = results.database.connect("billing_owner")
    owner.execute("create table outgoing (resource text, address text, by_pid int)")
    owner.execute("grant select, insert on outgoing to pgfence_app")
    owner.execute("select pgfence.protect('outgoing', '{resource}')")
    one, other = results.worker("worker_a"), results.worker("worker_a")
    token = one.acquire(RESOURCE).token

    def send(worker: Worker) -> str:
        verdict = str(worker.apply(token, 1, "reminder to x@example.org").verdict)
        if verdict == "ACCEPTED":
            worker.conn.execute("insert into outgoing values (%s, 'x@example.org', 1)", [RESOURCE])
        return verdict

    with one.transaction():
        first = send(one)
        second = in_background(lambda: send(other))
        wait_until_blocked(results.database.connect(), other.pid)
    assert (first, second.result()) == ("ACCEPTED", "REPLAYED")
    assert owner.execute("select count(*) from outgoing").fetchone() == (1,)


@pytest.mark.rule("R39")
def test_postgresql_operator_1153_an_owner_whose_successor_was_lost_in_the_failover_is_refused(
    primary: Copy, standby: Standby, keys: Keys
) -> None:
    old = Side(primary.database, keys)
    for _ in range(8):
        taken = old.acquire("worker_b", RESOURCE)
        assert taken
        old.worker("worker_b").release(taken.lease)
    ninth = old.acquire("worker_a", RESOURCE)
    assert ninth
    assert old.apply(ninth) == "ACCEPTED"
    standby.catch_up()
    standby.cut()
    old.worker("worker_a").release(ninth.lease)
    tenth = old.acquire("worker_b", RESOURCE)
    assert tenth
    assert (ninth.fence_token, tenth.fence_token) == (9, 10)
    assert old.apply(tenth) == "ACCEPTED"  # acknowledged, and lost
    standby.promote()

    new = Side(standby.database, keys)
    assert new.apply(ninth) == "REBIND_REQUIRED"
    next_owner = new.acquire("worker_b", RESOURCE)
    assert next_owner
    assert next_owner.fence_token > 10
    assert new.apply(ninth) == new.apply(tenth) == "REVOKED_EPOCH"
    assert new.apply(next_owner) == "ACCEPTED"
    new.assert_whole()


@pytest.mark.rule("R19", "R24")
def test_ceph_nvmeof_1965_nothing_fits_between_the_check_and_the_write(results: Results) -> None:
    a, b = results.worker("worker_a"), results.worker("worker_b")
    held = a.acquire(RESOURCE)
    # A check in one transaction is none for the next one.
    assert a.apply(held.token, 1).verdict == "ACCEPTED"
    with refused("PF201"):
        results.write_anyway(a, "A's")

    # In one transaction the delay may be as long as it likes: the lease is looked at once more.
    def check_and_write() -> None:
        assert a.apply(held.token, 2).verdict == "ACCEPTED"
        results.write_anyway(a, "A's")
        no_timeouts(a)

    begin_before_the_end(a, held.lease, check_and_write)
    wait_until(lambda: lease_is_over(results.database, held.lease), "the delay is long")
    with refused("PF203"):
        a.conn.execute("commit")
    taken = b.acquire(RESOURCE)
    assert results.write(b, taken.token, 1, "B's") == "ACCEPTED"
    assert results.write(a, held.token, 2, "A's") == "STALE_OWNER"
    assert results.rows() == [("B's", "worker_b")]


@pytest.mark.rule("R36", "R38")
def test_platform_4476_a_lock_is_not_taken_for_its_age_and_not_removed_by_its_old_owner(
    results: Results,
) -> None:
    a, b = results.worker("worker_a"), results.worker("worker_b")
    held = a.acquire(RESOURCE)
    as_owner(
        results.database,
        "update pgfence_registry.grants set granted_at = granted_at - interval '1 year'",
    )
    assert b.ask(RESOURCE, "b").state == "WAIT"  # old, and alive: it was renewed
    end_lease(results.database, held.lease)
    taken = b.acquire(RESOURCE, "b")
    assert taken.state == "HELD"
    assert results.write(b, taken.token, 1, "B's") == "ACCEPTED"
    assert results.write(a, held.token, 1, "A's") == "STALE_OWNER"
    a.release(held.lease)
    assert b.renew(taken.lease).state == "HELD"
    assert results.write(b, taken.token, 2, "B's, again") == "ACCEPTED"


@pytest.mark.rule("R53")
def test_hazelcast_17436_leases_and_fences_stand_after_a_full_restart(
    primary: Copy, keys: Keys
) -> None:
    """The server with registry and tables in it, killed and started again."""
    before = Side(primary.database, keys)
    held = before.acquire("worker_a", RESOURCE)
    assert held
    assert before.apply(held) == "ACCEPTED"
    primary.stop("immediate")
    primary.start()

    after = Side(primary.database, keys)
    assert after.worker("worker_a").renew(held.lease).state == "HELD"
    assert after.acquire("worker_b", RESOURCE) is None
    assert after.apply(held) == "ACCEPTED"
    after.worker("worker_a").release(held.lease)
    taken = after.acquire("worker_b", RESOURCE)
    assert taken
    assert taken.fence_token == held.fence_token + 1
    assert after.apply(taken) == "ACCEPTED"
    after.assert_whole()
