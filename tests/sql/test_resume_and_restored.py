"""What operators say by hand: a paused resource goes on, a database was put back."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support import PATIENCE, Database, Keys, wait_until_blocked
from tests.workers import Worker, as_owner, fence_row, forge, grant_of, in_background

RESOURCE = "invoice-batch/2026-07-19"


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture
def dba(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "dba")


def journal(database: Database) -> list[Any]:
    return (
        database.connect("auditor")
        .execute(
            "select session_role, action, resource, reason from pgfence.journal order by entry"
        )
        .fetchall()
    )


def regress(database: Database, worker: Worker, keys: Keys) -> Any:
    """Let the registry's current grant be younger and lower than the highest one: it is paused."""
    low = worker.acquire(RESOURCE)
    high = forge(
        grant_of(low.token), keys,
        fence_token=low.fence_token + 9, operation_root=f"sha256:{'1' * 64}", lease="lease-high",
        request_id="high", issued_at=grant_of(low.token).issued_at - 1,
    )  # fmt: skip
    as_owner(
        database,
        "insert into pgfence_registry.grants (lease, resource, fence_token, owner, request_id,"
        " issuer_epoch, ttl_ms, message, digest, token, granted_at, lease_ends_at)"
        " select 'lease-high', resource, fence_token + 9, owner, 'high', issuer_epoch, ttl_ms,"
        " %(message)s, sha256(convert_to(%(message)s, 'UTF8')), %(token)s, granted_at,"
        " lease_ends_at from pgfence_registry.grants where lease = %(lease)s",
        {"message": grant_of(high).encode().decode(), "token": high, "lease": low.lease},
    )
    assert worker.apply(high, 1).verdict == "ACCEPTED"
    assert worker.apply(low.token, 1).verdict == "FENCE_REGRESSION"
    return low


@pytest.mark.rule("R10", "R17", "R37")
def test_r37_a_paused_resource_goes_on_above_its_mark_when_it_is_resumed(
    database: Database, worker: Worker, dba: Worker, keys: Keys
) -> None:
    low = regress(database, worker, keys)
    with pytest.raises(psycopg.Error) as paused:
        worker.ask(RESOURCE)
    assert paused.value.sqlstate == "PF110"
    assert "pgfence resume" in str(paused.value.diag.message_hint)

    because = fence_row(database, RESOURCE).paused_because
    assert dba.call("select * from pgfence.resume(%s, 'looked at it')", [RESOURCE]) == (
        because,
        low.fence_token + 9,
    )
    assert worker.apply(low.token, 1).verdict == "STALE_OWNER"
    again = worker.acquire(RESOURCE)
    assert again.fence_token == low.fence_token + 10
    assert worker.apply(again.token, 1).verdict == "ACCEPTED"
    assert journal(database) == [("dba", "RESUMED", RESOURCE, "looked at it")]


@pytest.mark.rule("R37")
def test_r37_without_resume_the_resource_stays_paused(
    database: Database, worker: Worker, keys: Keys
) -> None:
    low = regress(database, worker, keys)
    worker.release(low.lease)
    with pytest.raises(psycopg.Error) as paused:
        worker.ask(RESOURCE)
    assert paused.value.sqlstate == "PF110"


@pytest.mark.rule("R37")
def test_r37_what_is_not_paused_is_not_resumed(
    database: Database, worker: Worker, dba: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    for resource in (RESOURCE, "never heard of"):
        with pytest.raises(psycopg.Error) as refused:
            dba.call("select * from pgfence.resume(%s)", [resource])
        assert refused.value.sqlstate == "PF301"
        assert f"'{resource}' is not paused" in str(refused.value)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    assert journal(database) == []


def pause(database: Database) -> None:
    as_owner(database, "update pgfence.fences set paused_because = 'a test'")


RESUME = "select * from pgfence.resume(%s, '', %s)"


@pytest.mark.rule("R37")
def test_r37_a_lease_of_before_a_pause_is_over_when_the_resource_is_resumed(
    database: Database, worker: Worker, dba: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    pause(database)
    assert dba.call(RESUME, [RESOURCE, 0]).above == held.fence_token
    verdict = worker.apply(held.token, 1)
    assert (verdict.verdict, verdict.reason) == ("NOT_HELD", "SUPERSEDED")
    base = dba.call("select * from pgfence.restored()").fence_base
    pause(database)
    assert dba.call(RESUME, [RESOURCE, 0]).above == base


@pytest.mark.rule("R34", "R37")
def test_r34_a_grant_that_nobody_had_signed_before_a_resume_is_decided_again(
    database: Database, worker: Worker, dba: Worker
) -> None:
    unsigned = worker.ask(RESOURCE, "unsigned")
    pause(database)
    assert dba.call(RESUME, [RESOURCE, 0]).above == unsigned.fence_token
    decided = worker.acquire(RESOURCE, "unsigned")
    assert decided.fence_token == unsigned.fence_token + 1
    assert worker.apply(decided.token, 1).verdict == "ACCEPTED"


@pytest.mark.rule("R14", "R37")
def test_r37_resumed_fences_begin_no_higher_than_the_policy_lets_them_jump(
    database: Database, worker: Worker, dba: Worker
) -> None:
    as_owner(database, "select pgfence.set_policy('', null, 10)")
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    base = 0
    for above in (11, 10):
        pause(database)
        for wrong in (base + above, -1, None):
            with pytest.raises(psycopg.Error) as refused:
                dba.call(RESUME, [RESOURCE, wrong])
            assert refused.value.sqlstate == "PF301"
        assert dba.call(RESUME, [RESOURCE, base + above - 1]).above == base + above - 1
        taken = worker.acquire(RESOURCE)
        assert taken.fence_token == base + above
        assert worker.apply(taken.token, 1).verdict == "ACCEPTED"
        base = dba.call("select * from pgfence.restored()").fence_base
    as_owner(database, "select pgfence.set_policy('', null, 9007199254740991)")
    pause(database)
    with pytest.raises(psycopg.Error) as refused:
        dba.call(RESUME, [RESOURCE, 2**53 - 1])
    assert refused.value.sqlstate == "PF301"


@pytest.mark.rule("R37")
def test_r37_two_who_resume_at_once_resume_once(
    database: Database, worker: Worker, dba: Worker, keys: Keys
) -> None:
    worker.acquire(RESOURCE)
    pause(database)
    second = Worker.login(database, keys, "dba")
    with dba.transaction():
        dba.call(RESUME, [RESOURCE, 0])
        waiting = in_background(lambda: second.call(RESUME, [RESOURCE, 0]))
        wait_until_blocked(database.connect(), second.pid)
    with pytest.raises(psycopg.Error) as refused:
        waiting.result(PATIENCE)
    assert refused.value.sqlstate == "PF301"
    assert len(journal(database)) == 1


@pytest.mark.rule("R39")
def test_r39_restored_ends_every_grant_of_before_and_raises_the_base(
    database: Database, worker: Worker, dba: Worker
) -> None:
    held, idle = worker.acquire(RESOURCE), worker.acquire("other")
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    said = dba.call("select * from pgfence.restored('disk snapshot', 1125899906842624)")
    assert 2**50 + 2**32 <= said.fence_base < 2**50 + 2**38
    for old in (held, idle):
        assert worker.apply(old.token, 2).verdict == "REVOKED_EPOCH"
        assert worker.advance(old.token).verdict == "REVOKED_EPOCH"
        renewed = worker.renew(old.lease)
        assert (renewed.state, renewed.remaining_ms) == ("EXPIRED", 0)
        assert "acquire the resource again" in renewed.reason
    again = worker.acquire("other")
    assert again.fence_token == said.fence_base + 1
    assert grant_of(again.token).issuer_epoch == said.issuer_epoch
    assert journal(database) == [("dba", "RESTORED", None, "disk snapshot")]


@pytest.mark.rule("R34", "R39")
def test_r34_asking_again_for_a_grant_of_before_does_not_bring_it_back(
    database: Database, worker: Worker, dba: Worker
) -> None:
    """A signed one is over; one that nobody had signed yet is decided again."""
    signed = worker.acquire(RESOURCE, "signed")
    unsigned = worker.ask("other", "unsigned")
    assert unsigned.state == "SIGNING"
    dba.call("select * from pgfence.restored()")
    again = worker.ask(RESOURCE, "signed")
    assert (again.state, again.lease, again.token) == ("EXPIRED", signed.lease, None)
    decided = worker.acquire("other", "unsigned")
    assert decided.fence_token > 2**32
    assert worker.apply(decided.token, 1).verdict == "ACCEPTED"


@pytest.mark.rule("R14", "R39")
def test_r14_the_step_counts_from_the_base_to_which_failovers_have_raised_the_fences(
    database: Database, worker: Worker, dba: Worker, keys: Keys
) -> None:
    """Else a new resource could not be written after a few failovers, or after one if the policy
    allows small steps only."""
    as_owner(database, "select pgfence.set_policy('', null, 10)")
    old = worker.acquire(RESOURCE)
    assert worker.apply(old.token, 1).verdict == "ACCEPTED"
    for _ in range(20):
        base = dba.call("select * from pgfence.restored()").fence_base
    assert base > 2**40
    for resource in (RESOURCE, "new"):
        taken = worker.acquire(resource)
        assert worker.apply(taken.token, 1).verdict == "ACCEPTED"
        far = forge(
            grant_of(taken.token), keys, fence_token=taken.fence_token + 11,
            operation_root=f"sha256:{'1' * 64}",
        )  # fmt: skip
        as_owner(
            database,
            "update pgfence_registry.grants set digest = sha256(convert_to(%s, 'UTF8'))"
            " where lease = %s",
            [grant_of(far).encode().decode(), taken.lease],
        )
        assert worker.apply(far, 1).verdict == "FENCE_STEP"


@pytest.mark.rule("R39")
def test_r39_restored_waits_for_the_transactions_that_were_admitted_before(
    database: Database, worker: Worker, dba: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    with worker.transaction():
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        restored = in_background(lambda: dba.call("select * from pgfence.restored()"))
        assert wait_until_blocked(database.connect(), dba.pid) == [worker.pid]
    restored.result()
    assert worker.apply(held.token, 2).verdict == "REVOKED_EPOCH"


@pytest.mark.rule("R39")
def test_r39_renewing_in_a_promoted_database_is_over_before_anybody_has_asked(
    database: Database, worker: Worker
) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.renew(held.lease).state == "HELD"
    as_owner(database, "update pgfence.configuration set timeline = '0000FFFF'")
    assert worker.renew(held.lease).state == "EXPIRED"


@pytest.mark.rule("R39")
def test_r39_rebinding_leaves_a_trace_of_what_was_and_what_is(
    database: Database, worker: Worker
) -> None:
    as_owner(database, "update pgfence.configuration set timeline = '0000FFFF'")
    worker.acquire(RESOURCE)
    assert journal(database) == [("worker_a", "REBOUND", None, "")]
    (detail,) = worker.database.connect().execute("select detail from pgfence.journal").fetchall()
    before, after = detail[0]["before"], detail[0]["after"]
    assert (before["timeline"], after["timeline"]) == ("0000FFFF", "00000001")
    assert (before["issuer_epoch"], after["issuer_epoch"]) == (1, 2)
    assert after["fence_base"] - before["fence_base"] >= 2**32


@pytest.mark.rule("R26")
@pytest.mark.parametrize(
    "change",
    [
        "update pgfence.journal set reason = 'another'",
        "delete from pgfence.journal",
        "truncate pgfence.journal",
    ],
)
def test_r26_a_line_of_the_journal_is_not_changed_by_the_owner_role_either(
    database: Database, dba: Worker, change: str
) -> None:
    dba.call("select * from pgfence.restored('one')")
    with pytest.raises(psycopg.Error) as refused:
        as_owner(database, change)
    assert refused.value.sqlstate == "PF204"
    assert journal(database) == [("dba", "RESTORED", None, "one")]


@pytest.mark.rule("R9", "R39")
def test_r39_rebinding_and_a_snapshot_of_before_do_not_deadlock(
    database: Database, worker: Worker, keys: Keys
) -> None:
    """A waiter of before finds the new identity; an owner on an old snapshot has the fence row."""
    rival = Worker.login(database, keys, "worker_b")
    held = worker.acquire(RESOURCE)
    assert rival.ask(RESOURCE, "waiter").state == "WAIT"
    as_owner(database, "update pgfence.configuration set timeline = '0000FFFF'")
    with worker.transaction("repeatable read"):
        assert worker.apply(held.token, 1).verdict == "REBIND_REQUIRED"
        assert rival.ask(RESOURCE, "waiter").state == "WAIT"
    assert rival.acquire(RESOURCE, "waiter").state == "HELD"


@pytest.mark.rule("R39")
@pytest.mark.parametrize(
    "change",
    [
        "update pgfence.configuration set epoch_floor = epoch_floor - 1",
        "update pgfence.configuration set issuer_epoch = issuer_epoch - 1",
        "update pgfence.configuration set fence_base = fence_base - 1",
        "delete from pgfence.configuration",
        "truncate pgfence.configuration",
    ],
)
def test_r39_epochs_and_base_never_fall_by_the_owners_ordinary_sql(
    database: Database, dba: Worker, change: str
) -> None:
    dba.call("select * from pgfence.restored()")
    with pytest.raises(psycopg.Error) as refused:
        as_owner(database, change)
    assert refused.value.sqlstate == "PF205"


@pytest.mark.rule("R26")
@pytest.mark.parametrize("role", ["worker_a", "registry", "auditor", "billing_owner", "outsider"])
@pytest.mark.parametrize("call", ["pgfence.restored()", "pgfence.resume('r')"])
def test_r26_only_members_of_pgfence_owner_resume_and_restore(
    database: Database, role: str, call: str
) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        database.connect(role).execute(f"select {call}")


@pytest.mark.parametrize(
    "call",
    [
        "pgfence.restored(null)",
        "pgfence.restored('', null)",
        "pgfence.restored('', -1)",
        "pgfence.restored('', 9007199254740991)",
        "pgfence.resume(null)",
        "pgfence.resume('r', null)",
        "pgfence.resume('r', '', null)",
    ],
)
def test_a_wrong_argument_changes_nothing(database: Database, dba: Worker, call: str) -> None:
    before = dba.call("table pgfence.configuration")
    with pytest.raises(psycopg.Error) as refused:
        dba.call(f"select {call}")
    assert refused.value.sqlstate == "PF301"
    assert dba.call("table pgfence.configuration") == before
