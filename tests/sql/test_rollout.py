"""Shadow runs the identical code and lets through what would be refused (R28); never back (R29)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.guarded import (
    BATCH,
    DAY,
    LATER_DAY,
    NEXT_BATCH,
    NEXT_DAY,
    Writer,
    attach_later,
    make_table,
    protect,
    refused,
    run,
)
from tests.rollout import enforce, evidence, shadow
from tests.support import PATIENCE, Database, Keys, wait_until, wait_until_blocked
from tests.workers import (
    Worker,
    as_owner,
    begin_before_the_end,
    end_lease,
    fence_row,
    forge,
    grant_of,
    in_background,
    lease_is_over,
    no_timeouts,
)

PREFIX = "invoice-batch/"
INSERT = "insert into invoices values (1, '{day}', 10)"
LEVELS = ["read committed", "repeatable read", "serializable"]


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture(params=["plain", "partitioned"])
def invoices(request: pytest.FixtureRequest, owner: psycopg.Connection[Any]) -> None:
    """A table that is not protected yet; its third partition is attached after protect."""
    make_table(owner, "invoices", request.param)


def protect_invoices(owner: psycopg.Connection[Any]) -> None:
    protect(owner, "invoices")
    if owner.execute("select relkind from pg_class where relname = 'invoices'").fetchone() == (
        "p",
    ):
        attach_later(owner, "invoices")


def rows(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("select count(*) from invoices").fetchone()
    assert row is not None
    return int(row[0])


# R28: the answer


def test_r28_refusal_is_answered_as_would_refuse_and_recorded_apart(
    database: Database, keys: Keys, worker: Worker
) -> None:
    shadow(database, PREFIX)
    held = worker.acquire(BATCH)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    verdict = worker.apply(held.token, 3)
    assert (verdict.verdict, verdict.would_refuse) == ("WOULD_REFUSE", "SEGMENT_GAP")
    assert verdict.last_segment == 1
    rival = Worker.login(database, keys, "worker_b")
    assert rival.apply(held.token, 2).would_refuse == "NOT_OWNER"
    assert rival.apply(held.token, 2).would_refuse == "NOT_OWNER"
    found = [
        (e.verdict, e.session_role, e.resource, e.shadow_prefix, e.occurrences, e.authenticated)
        for e in evidence(database)
    ]
    assert found == [
        ("SEGMENT_GAP", "worker_a", BATCH, PREFIX, 1, True),
        ("NOT_OWNER", "worker_b", BATCH, PREFIX, 2, True),
    ]
    assert worker.apply(held.token, 2).verdict == "ACCEPTED"


def test_r28_control_without_an_entry_it_is_refused(database: Database, worker: Worker) -> None:
    shadow(database, "another-batch/")
    held = worker.acquire(BATCH)
    verdict = worker.apply(held.token, 3)
    assert (verdict.verdict, verdict.would_refuse) == ("SEGMENT_GAP", None)
    assert evidence(database) == []


def test_r28_token_of_a_bad_signature_is_let_through_where_it_names_a_resource_in_shadow(
    database: Database, worker: Worker
) -> None:
    shadow(database, PREFIX)
    token = worker.acquire(BATCH).token
    head, body, footer = token.rsplit(".", 2)
    broken = ".".join([head, body[:-4] + ("AAAA" if body[-4:] != "AAAA" else "BAAA"), footer])
    assert worker.apply(broken, 1).would_refuse == "BAD_SIGNATURE"
    (found,) = evidence(database)
    assert (found.authenticated, found.resource, found.shadow_prefix) == (False, None, PREFIX)
    # what names nothing is enforced
    assert worker.apply("v4.public.AAAA.AAAA", 1).verdict == "MALFORMED"
    assert worker.apply(worker.acquire("other/1").token, 2).verdict == "SEGMENT_GAP"


def test_r28_require_passes_it_on_with_a_warning(database: Database, worker: Worker) -> None:
    shadow(database, PREFIX)
    held = worker.acquire(BATCH)
    warned: list[str] = []
    worker.conn.add_notice_handler(lambda diag: warned.append(str(diag.message_primary)))
    row = worker.call(
        "select (pgfence.require(pgfence.fenced_apply(%s, 5, ''))).verdict", [held.token]
    )
    assert row.verdict == "WOULD_REFUSE"
    assert len(warned) == 1
    assert "SEGMENT_GAP" in warned[0]


def test_r28_a_damaged_guard_is_one_more_reason_to_refuse(
    database: Database, owner: psycopg.Connection[Any], worker: Worker
) -> None:
    shadow(database, PREFIX)
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    held = worker.acquire(BATCH)
    owner.execute("alter table invoices disable trigger pgfence_guard_update")
    verdict = worker.apply(held.token, 1)
    assert (verdict.would_refuse, verdict.last_segment) == ("GUARD_MISSING", 0)
    protect(owner, "invoices")
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"


def test_r28_a_changed_column_does_not_stop_a_write(
    database: Database, owner: psycopg.Connection[Any], worker: Worker
) -> None:
    owner.execute("create table invoices (batch_date text)")
    owner.execute("grant insert on invoices to pgfence_app")
    shadow(database, PREFIX)
    protect(owner, "invoices")
    owner.execute("alter table invoices alter batch_date type varchar(20)")
    worker.conn.execute("insert into invoices values ('2026-07-19')")
    assert [(e.verdict, e.written_table) for e in evidence(database)] == [
        ("GUARD_MISSING", "public.invoices")
    ]
    enforce(database, PREFIX)
    with refused("PF202"):
        worker.conn.execute("insert into invoices values ('2026-07-19')")


# R28: the guard


@pytest.mark.usefixtures("invoices")
def test_r28_write_without_admission_is_let_through_and_counted_by_transaction(
    database: Database, owner: psycopg.Connection[Any], worker: Worker
) -> None:
    shadow(database, PREFIX)
    protect_invoices(owner)
    for day in (DAY, NEXT_DAY):
        with worker.transaction():
            for number in range(3):
                worker.conn.execute(
                    "insert into invoices select %s * 9 + i, %s, 1 from generate_series(1, 6) i",
                    [number, day],
                )
    assert rows(owner) == 36
    (found,) = evidence(database)
    assert (found.verdict, found.session_role, found.occurrences) == ("NOT_ADMITTED", "worker_a", 2)
    assert found.written_table == "public.invoices"
    assert (found.shadow_prefix, found.authenticated) == (PREFIX, True)


@pytest.mark.usefixtures("invoices")
def test_r28_admitted_write_leaves_no_evidence(
    database: Database, keys: Keys, owner: psycopg.Connection[Any]
) -> None:
    shadow(database, PREFIX)
    protect_invoices(owner)
    with Writer.login(database, keys).admitted(BATCH) as conn:
        run(conn, INSERT.format(day=DAY))
    assert evidence(database) == []


MIXED = {
    "the enforced row first": f"insert into invoices values (1, '{NEXT_DAY}', 1), (2, '{DAY}', 1)",
    "the enforced row last": f"insert into invoices values (1, '{DAY}', 1), (2, '{NEXT_DAY}', 1)",
    "the enforced row between": f"insert into invoices values (1, '{DAY}', 1),"
    f" (2, '{NEXT_DAY}', 1), (3, '{LATER_DAY}', 1)",
    "moved out of it": f"update invoices set batch_date = '{DAY}' where id = 12",
    "moved into it": f"update invoices set batch_date = '{NEXT_DAY}' where id = 11",
    "deleted with others": "delete from invoices",
    "a writable CTE": f"with i as (insert into invoices values (1, '{DAY}', 1) returning id)"
    f" insert into invoices select id, '{NEXT_DAY}', 1 from i",
}


@pytest.mark.usefixtures("invoices")
@pytest.mark.parametrize("statement", MIXED.values(), ids=MIXED)
def test_r29_statement_that_touches_both_is_refused_for_the_enforced_resource(
    database: Database, owner: psycopg.Connection[Any], worker: Worker, statement: str
) -> None:
    run(owner, f"insert into invoices values (11, '{DAY}', 1), (12, '{NEXT_DAY}', 1)")
    shadow(database, PREFIX)
    protect_invoices(owner)
    worker.conn.execute("begin")
    run(worker.conn, statement)  # the control: all of it is in shadow
    worker.conn.execute("rollback")
    enforce(database, NEXT_BATCH)
    with refused() as error:
        run(worker.conn, statement)
    assert NEXT_BATCH in str(error)
    assert rows(owner) == 2


@pytest.mark.usefixtures("invoices")
def test_r28_row_of_no_resource_and_truncate_pass_where_the_whole_table_is_in_shadow(
    database: Database, owner: psycopg.Connection[Any], worker: Worker
) -> None:
    owner.execute("grant truncate on invoices to worker_a")
    shadow(database, PREFIX)
    protect_invoices(owner)
    infinite = "insert into invoices values (1, 'infinity', 10)"
    if owner.execute("select relkind from pg_class where relname = 'invoices'").fetchone() == (
        "r",
    ):
        run(worker.conn, infinite)
        assert rows(owner) == 1
    worker.conn.execute("truncate invoices")
    assert {e.verdict for e in evidence(database)} == {"NOT_ADMITTED"}
    enforce(database, NEXT_BATCH)
    with refused():
        worker.conn.execute("truncate invoices")


@pytest.mark.parametrize("level", LEVELS)
def test_r28_each_isolation_level_lets_through(
    database: Database, owner: psycopg.Connection[Any], worker: Worker, level: str
) -> None:
    make_table(owner, "invoices", "plain")
    shadow(database, PREFIX)
    protect(owner, "invoices")
    held = worker.acquire(BATCH)
    with worker.transaction(level):
        assert worker.apply(held.token, 4).would_refuse == "SEGMENT_GAP"
        run(worker.conn, INSERT.format(day=DAY))
    assert rows(owner) == 1
    assert len(evidence(database)) == (2 if level == "read committed" else 0)


# R28: it ends no session and fails no COMMIT


@pytest.mark.parametrize("level", LEVELS)
def test_r28_lease_that_ended_before_commit_does_not_fail_the_commit(
    database: Database, worker: Worker, level: str
) -> None:
    shadow(database, PREFIX)
    held = worker.acquire(BATCH)

    def first() -> None:
        verdict = worker.apply(held.token, 1)
        assert verdict.verdict == "ACCEPTED", verdict

    begin_before_the_end(
        worker,
        held.lease,
        first,
        level,
    )
    wait_until(lambda: lease_is_over(database, held.lease), "the lease ends")
    worker.conn.execute("commit")
    assert fence_row(database, BATCH).last_segment == 1
    found = [(e.verdict, e.resource, e.fence_token) for e in evidence(database)]
    expected = [("LEASE_ENDED", BATCH, held.fence_token)] if level == "read committed" else []
    assert [f for f in found if f[0] != "NOT_HELD"] == expected


@pytest.mark.parametrize(("prefix", "limited"), [(PREFIX, False), ("other/", True)])
def test_r28_no_time_out_is_set_in_shadow(
    database: Database, worker: Worker, prefix: str, limited: bool
) -> None:
    shadow(database, prefix)
    held = worker.acquire(BATCH)
    show = "select current_setting('idle_in_transaction_session_timeout') as t"
    steps: list[Callable[[], Any]] = [
        lambda: worker.apply(held.token, 1),
        lambda: worker.renew(held.lease),
        lambda: worker.ask(f"{PREFIX}another"),
        lambda: worker.apply(held.token, 2),
        lambda: worker.release(held.lease),
    ]
    for step in steps:
        with worker.transaction():
            step()
            assert (worker.call(show).t != "0") is limited


@pytest.mark.parametrize(("prefix", "overdue"), [(PREFIX, 0), ("other/", 1)])
def test_r28_a_session_is_not_overdue_in_shadow(
    database: Database, keys: Keys, worker: Worker, prefix: str, overdue: int
) -> None:
    shadow(database, prefix)
    rival = Worker.login(database, keys, "worker_b")
    held = worker.acquire(BATCH)
    worker.conn.execute("begin")
    worker.apply(held.token, 1)
    no_timeouts(worker)
    end_lease(database, held.lease)
    answer = rival.ask(BATCH, "request-of-rival")
    waiting = in_background(lambda: rival.ask(BATCH, answer.request_id))
    wait_until_blocked(database.connect(), rival.pid)
    watcher = database.connect("registry")
    found = watcher.execute("select pid from pgfence_registry.overdue_sessions()").fetchall()
    worker.conn.execute("rollback")
    waiting.result(PATIENCE)
    assert len(found) == overdue


# R18: evidence


def test_r28_evidence_is_bounded_and_pushes_out_no_refusal(
    database: Database, keys: Keys, worker: Worker
) -> None:
    shadow(database, PREFIX)
    enforced = worker.acquire("other/1")
    assert worker.apply(enforced.token, 7).verdict == "SEGMENT_GAP"
    grant = grant_of(worker.acquire(BATCH).token)
    for number in range(150):
        assert worker.apply(forge(grant, keys, lease=f"l-{number}"), 1).reason == "UNKNOWN_GRANT"
    assert len(evidence(database)) == 128
    counted = database.connect("auditor").execute(
        "select count(*), count(*) filter (where in_shadow),"
        " count(*) filter (where verdict = 'SEGMENT_GAP') from pgfence.refusals"
    )
    assert counted.fetchone() == (1920, 640, 1)


def test_r28_recording_passes_over_what_another_transaction_holds(
    database: Database, keys: Keys, owner: psycopg.Connection[Any], worker: Worker
) -> None:
    shadow(database, PREFIX)
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    run(worker.conn, INSERT.format(day=DAY))
    worker.conn.execute("begin")
    run(worker.conn, "update invoices set amount = 2")
    second = Worker.login(database, keys, "worker_a", options="-c lock_timeout=1s")
    second.conn.execute(f"insert into invoices values (2, '{DAY}', 1)")
    worker.conn.execute("commit")
    assert sorted(e.occurrences for e in evidence(database)) == [1, 2]


# R29


def test_r29_longest_prefix_wins(database: Database, worker: Worker) -> None:
    shadow(database, "")
    shadow(database, PREFIX)
    shadow(database, BATCH)
    enforce(database, PREFIX)
    verdicts = {
        resource: worker.apply(worker.acquire(resource).token, 9).verdict
        for resource in (BATCH, f"{BATCH}/part", NEXT_BATCH, "other/1")
    }
    assert verdicts == {
        BATCH: "WOULD_REFUSE",
        f"{BATCH}/part": "WOULD_REFUSE",
        NEXT_BATCH: "SEGMENT_GAP",
        "other/1": "WOULD_REFUSE",
    }


def test_r29_enforced_is_enforced_at_once_and_for_good(database: Database, worker: Worker) -> None:
    shadow(database, PREFIX)
    held = worker.acquire(BATCH)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    assert worker.apply(held.token, 5).verdict == "WOULD_REFUSE"
    enforce(database, PREFIX)
    assert worker.apply(held.token, 5).verdict == "SEGMENT_GAP"
    assert worker.apply(held.token, 2).verdict == "ACCEPTED"
    enforce(database, PREFIX)  # again: nothing
    for prefix in (PREFIX, "", "invoice", BATCH):
        with refused("PF306"):
            shadow(database, prefix)
    journal = database.connect("auditor").execute(
        "select action, resource, reason, session_role from pgfence.journal"
        " where action in ('SHADOWED', 'ENFORCED') order by entry"
    )
    assert journal.fetchall() == [
        ("SHADOWED", PREFIX, "a test", "dba"),
        ("ENFORCED", PREFIX, "a test", "dba"),
    ]


def test_r29_a_prefix_that_was_never_in_shadow_can_be_enforced_for_good(database: Database) -> None:
    enforce(database, PREFIX)
    for prefix in (PREFIX, "invoice", BATCH):
        with refused("PF306"):
            shadow(database, prefix)
    shadow(database, "other/")  # the control


def _asked(worker: Worker, owner: psycopg.Connection[Any]) -> None:
    worker.ask(BATCH)


def _asked_while_no_key_was_seen(worker: Worker, owner: psycopg.Connection[Any]) -> None:
    """A request, and nothing else yet."""
    with psycopg.connect(worker.database.dsn("dba")) as dba:
        dba.execute("select pgfence_registry.switch_coordinator('etcd', true)")
    root = "sha256:" + "0" * 64
    asked = "select * from pgfence_registry.request('r', %s, 'settle', %s, 1000, '', 'etcd')"
    assert worker.call(asked, [BATCH, root]).state == "WAIT"
    assert fence_row(worker.database, BATCH) is None


def _granted_elsewhere(worker: Worker, owner: psycopg.Connection[Any]) -> None:
    """A fence, and nothing else: the registry is in another database."""
    as_owner(worker.database, "insert into pgfence.fences (resource) values (%s)", [BATCH])


def _accepted_and_released(worker: Worker, owner: psycopg.Connection[Any]) -> None:
    held = worker.acquire(BATCH)
    worker.apply(held.token, 1)
    worker.release(held.lease)


def _protected(worker: Worker, owner: psycopg.Connection[Any]) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")


def _protected_wider(worker: Worker, owner: psycopg.Connection[Any]) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices", "{batch_date}")


@pytest.mark.parametrize(
    "use",
    [
        _asked,
        _asked_while_no_key_was_seen,
        _granted_elsewhere,
        _accepted_and_released,
        _protected,
        _protected_wider,
    ],
)
@pytest.mark.parametrize("prefix", ["", PREFIX, BATCH])
def test_r29_what_was_enforced_is_not_put_in_shadow(
    database: Database, worker: Worker, owner: psycopg.Connection[Any], use: Any, prefix: str
) -> None:
    use(worker, owner)
    with refused("PF306"):
        shadow(database, prefix)
    if use not in (_protected, _protected_wider):
        shadow(database, "other/")  # the control


def test_r29_refusal_on_record_counts_as_enforced(
    database: Database, keys: Keys, worker: Worker
) -> None:
    grant = grant_of(worker.acquire("other/1").token)
    forged = forge(grant, keys, resource=BATCH, owner="somebody-else")
    assert worker.apply(forged, 1).verdict == "NOT_OWNER"
    assert fence_row(database, BATCH) is None
    with refused("PF306"):
        shadow(database, PREFIX)


def test_r29_within_a_shadow_another_one_may_be_put(database: Database, worker: Worker) -> None:
    shadow(database, PREFIX)
    worker.apply(worker.acquire(BATCH).token, 1)
    shadow(database, BATCH)
    shadow(database, "invoice")
    shadow(database, PREFIX)  # again: nothing
    assert worker.apply(worker.acquire(NEXT_BATCH).token, 3).verdict == "WOULD_REFUSE"


def test_r29_around_a_table_that_is_in_shadow_another_prefix_may_be_put(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    shadow(database, PREFIX)
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    shadow(database, "invoice")
    with refused("PF306"):
        make_table(owner, "all_of_them", "plain")
        protect(owner, "all_of_them", "{batch_date}")
        shadow(database, "other/")
    shadow(database, BATCH)  # it is in shadow already


@pytest.mark.parametrize(
    "statement",
    [
        "update pgfence.rollout set enforced_since = null, enforced_by = null",
        "update pgfence.rollout set prefix = 'x' || prefix",
        "update pgfence.rollout set shadow_by = 'x', shadow_since = now()",
        "delete from pgfence.rollout",
        "truncate pgfence.rollout",
    ],
)
def test_r29_ordinary_sql_of_the_owner_role_takes_nothing_back(
    database: Database, statement: str
) -> None:
    shadow(database, PREFIX)
    enforce(database, PREFIX)
    with refused("PF306"):
        as_owner(database, statement)


@pytest.mark.parametrize("function", ["shadow", "enforce"])
@pytest.mark.parametrize("prefix", [None, "with space", 'quo"te', "x" * 256])
def test_r29_prefix_is_the_beginning_of_a_resource_id(
    database: Database, function: str, prefix: str | None
) -> None:
    with refused("PF301"):
        run_with(database.connect("dba"), f"select pgfence.{function}(%s)", [prefix])


@pytest.mark.parametrize("call", ["shadow('x/', null)", "enforce('x/', null)"])
def test_r29_a_reason_that_is_null_is_a_clear_error(database: Database, call: str) -> None:
    with refused("PF301"):
        run(database.connect("dba"), f"select pgfence.{call}")


@pytest.mark.parametrize("function", ["shadow", "enforce"])
@pytest.mark.parametrize("level", LEVELS)
def test_r29_the_rollout_is_not_decided_on_an_old_snapshot(
    database: Database, function: str, level: str
) -> None:
    dba = database.connect("dba")
    dba.execute(f"begin isolation level {level}")
    if level == "read committed":  # the control
        run_with(dba, f"select pgfence.{function}(%s)", [PREFIX])
    else:
        with refused("PF301"):
            run_with(dba, f"select pgfence.{function}(%s)", [PREFIX])


def test_r29_two_who_enforce_at_once_get_the_same_answer(database: Database) -> None:
    first, second = database.connect("dba"), database.connect("dba")
    enforce_it = "select pgfence.enforce('x/')"
    first.execute("begin")
    since = first.execute(enforce_it).fetchone()
    waiting = in_background(lambda: second.execute(enforce_it).fetchone())
    wait_until_blocked(database.connect(), second.info.backend_pid)
    first.execute("commit")
    assert waiting.result(PATIENCE) == since


def test_r29_shadow_waits_for_a_table_that_is_being_protected(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    make_table(owner, "invoices", "plain")
    owner.execute("begin")
    protect(owner, "invoices")
    dba = database.connect("dba")
    waiting = in_background(lambda: dba.execute("select pgfence.shadow(%s)", [PREFIX]))
    wait_until_blocked(database.connect(), dba.info.backend_pid)
    owner.execute("commit")
    with refused("PF306"):
        waiting.result(PATIENCE)


def run_with(conn: psycopg.Connection[Any], statement: str, parameters: list[Any]) -> None:
    conn.execute(statement, parameters)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_r29_old_snapshot_does_not_write_as_if_it_were_still_in_shadow(
    database: Database, owner: psycopg.Connection[Any], worker: Worker, level: str
) -> None:
    make_table(owner, "invoices", "plain")
    shadow(database, PREFIX)
    protect(owner, "invoices")
    worker.conn.execute(f"begin isolation level {level}")
    worker.conn.execute("select 1 from invoices")
    enforce(database, PREFIX)
    with refused("40001"):
        run(worker.conn, INSERT.format(day=DAY))
    worker.conn.execute("rollback")


def test_r29_first_use_and_shadow_wait_for_each_other(database: Database, worker: Worker) -> None:
    dba = database.connect("dba")
    worker.conn.execute("begin")
    worker.ask(BATCH)
    waiting = in_background(lambda: dba.execute("select pgfence.shadow(%s)", [PREFIX]))
    watcher = database.connect()

    def sleeps() -> bool:
        row = watcher.execute(
            "select wait_event = 'PgSleep' from pg_stat_activity where pid = %s",
            [dba.info.backend_pid],
        ).fetchone()
        return bool(row and row[0])

    wait_until(sleeps, "shadow() tries again")
    worker.conn.execute("commit")
    with refused("PF306"):
        waiting.result(PATIENCE)
