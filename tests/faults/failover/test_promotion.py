"""A standby is promoted while it is behind, and the old primary goes on writing (R39)."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack

import psycopg
import pytest

from pgfence import embedded
from tests.faults.failover.clusters import Copy, Standby
from tests.faults.failover.history import ACCEPTING, Held, Side, twice
from tests.support import Keys, wait_until
from tests.workers import in_background

RUNS = int(os.environ.get("PGFENCE_PROMOTIONS", "20"))
SEED = int(os.environ.get("PGFENCE_SEED", "20260719"))
RESOURCES = ["invoice-batch/1", "invoice-batch/2", "invoice-batch/3"]


@pytest.mark.rule("R7", "R39")
def test_r39_owner_of_before_is_refused_on_a_promoted_standby_until_it_acquires_again(
    primary: Copy, standby: Standby, keys: Keys
) -> None:
    old = Side(primary.database, keys)
    held = old.acquire("worker_a", "r")
    assert held
    assert old.apply(held) == "ACCEPTED"
    standby.catch_up()
    standby.cut()
    assert old.apply(held) == "ACCEPTED"  # acknowledged, and lost
    standby.promote()

    new = Side(standby.database, keys)
    assert new.apply(held) == "REBIND_REQUIRED"
    assert new.worker("worker_a").advance(held.token).verdict == "REBIND_REQUIRED"
    assert new.worker("worker_a").renew(held.lease).state == "EXPIRED"
    again = new.acquire("worker_b", "r")
    assert again
    assert again.fence_token > held.fence_token + 2**32
    assert new.apply(held) == "REVOKED_EPOCH"
    assert new.apply(again) == "ACCEPTED"
    assert new.apply(held) == "REVOKED_EPOCH"
    new.assert_whole()


@pytest.mark.rule("R39")
def test_r39_what_the_standby_could_not_know_is_not_taken_for_granted(
    primary: Copy, standby: Standby, keys: Keys
) -> None:
    """The control: the same grant is good where it was issued, and a lost one is unknown here."""
    old = Side(primary.database, keys)
    assert old.acquire("worker_b", "other")
    standby.catch_up()
    standby.cut()
    lost = old.acquire("worker_a", "r")
    assert lost
    standby.promote()
    new = Side(standby.database, keys)
    assert new.acquire("worker_b", "other")  # the database knows itself again
    assert new.apply(lost) == "REVOKED_EPOCH"
    assert old.apply(lost) == "ACCEPTED"


@pytest.mark.rule("R39")
def test_r39_two_promoted_standbys_of_one_primary_do_not_mint_the_same_fences(
    image: embedded.Server,
    primary: Copy,
    standby: Standby,
    servers: ExitStack,
    keys: Keys,
) -> None:
    other = servers.enter_context(Standby(image, primary))
    old = Side(primary.database, keys)
    held = [old.acquire("worker_a", r) for r in RESOURCES]
    for server in (standby, other):
        server.catch_up()
        server.cut()
        server.promote()
    assert standby.execute("select system_identifier from pg_control_system()") == other.execute(
        "select system_identifier from pg_control_system()"
    )
    sides = [Side(server.database, keys) for server in (standby, other)]
    for side in sides:
        for resource in RESOURCES * 3:
            taken = side.acquire("worker_a", resource)
            assert taken
            assert side.apply(taken) == "ACCEPTED"
            side.worker("worker_a").release(taken.lease)
    one, two = sides
    new = [
        {f: d for f, d in side.minted().items() if d not in old.minted().values()} for side in sides
    ]
    assert [len(minted) for minted in new] == [9, 9]
    assert not new[0].keys() & new[1].keys()
    assert not (new[0].keys() | new[1].keys()) & old.minted().keys()
    # A grant of the one is worth nothing on the other, nor on the old primary.
    foreign = one.acquire("worker_a", "another")
    assert foreign
    assert two.apply(foreign) == "NOT_HELD"
    assert old.apply(foreign) == "NOT_HELD"
    assert held[0]
    assert old.apply(held[0]) == "ACCEPTED"
    # It is genuine, and issued by somebody else: that is for a person to look at.
    alarm = ("NOT_HELD", "UNKNOWN_GRANT", foreign.fence_token)
    assert two.database.connect("auditor").execute(
        "select verdict, reason, fence_token from pgfence.refusals where occurrences > 0"
    ).fetchall() == [alarm]
    assert "pgfence refused NOT_HELD UNKNOWN_GRANT" in two.database.server.log()


@pytest.mark.rule("R39")
def test_r39_a_standby_takes_no_write_before_it_is_promoted(
    primary: Copy, standby: Standby, keys: Keys
) -> None:
    old = Side(primary.database, keys)
    held = old.acquire("worker_a", "r")
    assert held
    standby.catch_up()
    new = Side(standby.database, keys)
    for role in ("worker_a", "worker_b"):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            new.acquire(role, "r")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        new.worker("worker_a").renew(held.lease)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        new.apply(held)
    assert old.apply(held) == "ACCEPTED"


@pytest.mark.rule("R39")
def test_r39_a_standby_of_a_promoted_standby_is_another_database_again(
    image: embedded.Server,
    primary: Copy,
    standby: Standby,
    servers: ExitStack,
    keys: Keys,
) -> None:
    """Timelines 1, 2, 3: each raises the base above everything of before."""
    last = servers.enter_context(Standby(image, standby))
    side, previous = Side(primary.database, keys), 0
    held: list[Held] = []
    for server in (primary, standby, last):
        if server is not primary:
            assert isinstance(server, Standby)
            server.catch_up()
            server.promote()
            side = Side(server.database, keys)
        # Those of two failovers ago were revoked at the last one.
        verdicts = [side.apply(stale) for stale in held]
        assert verdicts == ["REVOKED_EPOCH"] * (len(held) - 1) + ["REBIND_REQUIRED"] * bool(held)
        taken = side.acquire("worker_a", "r")
        assert taken
        assert taken.fence_token > previous
        assert side.apply(taken) == "ACCEPTED"
        for stale in held:
            assert side.apply(stale) == "REVOKED_EPOCH"
        held.append(taken)
        previous = taken.fence_token
    side.assert_whole()


def wait_for_standby(primary: Copy) -> None:
    """Let the primary acknowledge only what a standby has."""
    with psycopg.connect(primary.dsn(), autocommit=True) as conn:
        conn.execute("alter system set synchronous_standby_names = '*'")
        conn.execute("select pg_reload_conf()")
    wait_until(
        lambda: (
            primary.execute("select count(*) from pg_stat_replication where sync_state = 'sync'")
            == 1
        ),
        "the standby is synchronous",
    )


def test_with_synchronous_replication_every_acknowledged_segment_is_there_after_the_failover(
    primary: Copy, standby: Standby, keys: Keys
) -> None:
    wait_for_standby(primary)
    old = Side(primary.database, keys)
    held = old.acquire("worker_a", "r")
    assert held
    assert [old.apply(held) for _ in range(20)] == ["ACCEPTED"] * 20
    primary.stop("immediate")
    standby.promote()
    assert standby.execute("select count(*) from pgfence.receipts") == 20
    assert Side(standby.database, keys).apply(held) == "REBIND_REQUIRED"


def test_a_wait_for_the_standby_that_is_cancelled_acknowledges_what_only_the_primary_has(
    primary: Copy, standby: Standby, keys: Keys
) -> None:
    """PostgreSQL's own exception, as the page about failover says."""
    wait_for_standby(primary)
    old = Side(primary.database, keys)
    held = old.acquire("worker_a", "r")
    assert held
    standby.cut()
    worker = old.worker("worker_a")
    warnings: list[str] = []
    worker.conn.add_notice_handler(lambda notice: warnings.append(str(notice.message_primary)))
    applied = in_background(lambda: old.apply(held))
    with psycopg.connect(primary.dsn(), autocommit=True) as conn:
        wait_until(
            lambda: (
                conn.execute(
                    "select pg_cancel_backend(pid) from pg_stat_activity"
                    " where pid = %s and wait_event = 'SyncRep'",
                    [worker.pid],
                ).fetchone()
                is not None
            ),
            "the COMMIT waits for the standby",
        )
    assert applied.result() == "ACCEPTED"
    assert any("canceling wait for synchronous replication" in w for w in warnings)
    standby.promote()
    assert standby.execute("select count(*) from pgfence.receipts") == 0
    assert primary.execute("select count(*) from pgfence.receipts") == 1


@pytest.mark.timeout(60 + 30 * RUNS)
@pytest.mark.rule("R7", "R39")
def test_r39_random_lag_and_writes_on_both_sides_let_no_stale_write_in(
    image: embedded.Server, keys: Keys
) -> None:
    """PGFENCE_PROMOTIONS runs; PGFENCE_SEED repeats them."""
    offered = accepted = minted_twice = written_twice = lost = lost_runs = 0
    for run in range(RUNS):
        seed = SEED + run
        choose = random.Random(seed)
        before, behind = choose.randint(1, 15), choose.randint(0, 10)
        with Copy(image) as primary, Standby(image, primary) as standby:
            old = Side(primary.database, keys)
            for _ in range(before):
                old.step(choose, RESOURCES)
            standby.catch_up()
            standby.cut()
            for _ in range(behind):
                old.step(choose, RESOURCES)
            standby.promote()
            new = Side(standby.database, keys)
            acknowledged = sum(g.last_segment for g in old.grants)
            arrived = standby.execute("select count(*) from pgfence.receipts")
            lost += acknowledged - arrived
            lost_runs += acknowledged > arrived
            # From here on both sides write, in any order, and whoever held a grant of the old
            # side tries it on the new one.
            for _ in range(30):
                match choose.choice(["old", "new", "stale", "stale"]):
                    case "old":
                        old.step(choose, RESOURCES)
                    case "new":
                        new.step(choose, RESOURCES)
                    case _:
                        stale = choose.choice(old.grants)
                        segment = choose.choice([1, stale.last_segment, stale.last_segment + 1])
                        offered += 1
                        accepted += new.offer(stale, max(1, segment)) in ACCEPTING
            for resource in RESOURCES:
                taken = new.acquire("worker_a", resource) or new.grants[-1]
                assert taken.fence_token > max(fence for _, fence in old.minted())
            for stale in old.grants:
                offered += 1
                accepted += new.apply(stale) in ACCEPTING
            minted_twice += twice(old.minted(), new.minted())
            written_twice += twice(old.written(), new.written())
            old.assert_whole()
            new.assert_whole()
    print(
        f"\n{RUNS} promotions from seed {SEED}: {lost} acknowledged segments lost in {lost_runs}"
        f" of them; {offered} stale writes offered, {accepted} accepted;"
        f" fence tokens minted twice {minted_twice}, written twice {written_twice}"
    )
    assert offered > 0
    assert (accepted, minted_twice, written_twice) == (0, 0, 0)
