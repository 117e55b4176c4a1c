"""Rights with which an application role could remove the guard, or stop others (R25, R26)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.guarded import BATCH, DAY, Writer, attach_later, make_table, protect, refused, run
from tests.support import Database, Keys
from tests.workers import begin_before_the_end, no_timeouts

REPLACE = (
    "create or replace trigger pgfence_guard_insert after insert on {} for each statement"
    " execute function evil.nothing()"
)


@pytest.fixture
def attacker(database: Database) -> psycopg.Connection[Any]:
    """worker_b, with a schema of its own and a trigger function in it."""
    run(database.connect(), "create schema evil authorization worker_b")
    conn = database.connect("worker_b")
    run(
        conn,
        "create function evil.nothing() returns trigger language plpgsql"
        " as 'begin return null; end'",
    )
    return conn


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
@pytest.mark.parametrize("grantee", ["worker_b", "public"])
def test_r26_protect_takes_the_right_to_create_triggers_from_others(
    owner: psycopg.Connection[Any], attacker: psycopg.Connection[Any], grantee: str, kind: str
) -> None:
    for table in ("invoices", "open_invoices"):
        make_table(owner, table, kind)
        run(owner, f"grant all on {table} to {grantee}")
    protect(owner, "invoices")
    run(attacker, REPLACE.format("open_invoices").replace("pgfence_guard", "control"))
    with refused("42501"):
        run(attacker, REPLACE.format("invoices"))
    run(attacker, f"insert into open_invoices values (1, '{DAY}', 1)")
    with refused():
        run(attacker, f"insert into invoices values (1, '{DAY}', 1)")


def test_r26_a_right_that_was_handed_on_is_taken_as_well_whatever_the_roles_are_called(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    make_table(owner, "invoices", "plain")
    superuser = database.connect()
    superuser.execute("begin")  # roles belong to the whole server
    superuser.execute('create role "Odd, Name"')
    run(owner, "grant trigger on invoices to outsider with grant option")
    run(database.connect("outsider"), "grant trigger on invoices to auditor")
    superuser.execute('grant trigger on invoices to "Odd, Name"')
    notices: list[str] = []
    superuser.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    superuser.execute("set local session authorization billing_owner")
    protect(superuser, "invoices")
    superuser.execute("reset session authorization")
    for role in ("Odd, Name", "outsider", "auditor"):
        may = superuser.execute(
            "select has_table_privilege(%s, 'invoices', 'TRIGGER')", [role]
        ).fetchone()
        assert may == (False,), role
        assert any(role in notice for notice in notices), notices
    assert superuser.execute(
        "select has_table_privilege('billing_owner', 'invoices', 'TRIGGER')"
    ).fetchone() == (True,)
    superuser.execute("rollback")


@pytest.mark.parametrize("relation", ["invoices", "invoices_0", "invoices_later"])
def test_r25_right_to_create_triggers_that_is_granted_later_is_noticed_at_admission(
    database: Database, keys: Keys, owner: psycopg.Connection[Any], relation: str
) -> None:
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    attach_later(owner, "invoices")
    writer = Writer.login(database, keys)
    with writer.admitted(BATCH):
        pass
    run(owner, f"grant trigger on {relation} to worker_b")
    with refused("PF202") as error, writer.admitted(BATCH):
        pass
    assert "create triggers" in str(error)
    protect(owner, "invoices")
    with writer.admitted(BATCH):
        pass


def test_r26_workload_cannot_protect_a_table_of_its_own_and_stop_everybody(
    database: Database, keys: Keys, attacker: psycopg.Connection[Any]
) -> None:
    run(attacker, "create table evil.bait (resource text)")
    for call in ("prepare_protection", "protect"):
        with refused("PF304"):
            run(attacker, f"select pgfence.{call}('evil.bait', '{{resource}}')")
    with Writer.login(database, keys).admitted(BATCH):
        pass


@pytest.mark.parametrize("how", ["", "with inherit false"])
def test_r26_table_whose_owner_a_workload_can_act_as_is_not_protected(
    database: Database, owner: psycopg.Connection[Any], how: str
) -> None:
    if how and owner.info.server_version < 160000:
        pytest.skip("PostgreSQL 16 brought INHERIT for each membership")
    make_table(owner, "invoices", "plain")
    superuser = database.connect()
    run(superuser, f"grant billing_owner to worker_b {how}")
    try:
        with refused("PF304") as error:
            protect(owner, "invoices")
    finally:
        run(superuser, "revoke billing_owner from worker_b")
    assert "worker_b" in str(error)
    protect(owner, "invoices")


def test_r19_cursor_that_is_filled_behind_the_look_at_commit_writes_nothing_late(
    database: Database, keys: Keys, owner: psycopg.Connection[Any]
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    writer = Writer.login(database, keys)
    held = writer.worker.acquire(BATCH)

    def steps() -> None:
        assert writer.worker.apply(held.token, 1).verdict == "ACCEPTED"
        no_timeouts(writer.worker)
        writer.worker.conn.execute(
            "create function pg_temp.late() returns integer language plpgsql as $$ begin"
            " while clock_timestamp() < (select lease_ends_at from pgfence_registry.look("
            f"'{held.lease}')) loop perform pg_sleep(0.01); end loop;"
            f" insert into public.invoices values (1, '{DAY}', 1); return 1; end $$"
        )
        writer.worker.conn.execute("declare late cursor with hold for select pg_temp.late()")

    begin_before_the_end(writer.worker, held.lease, steps)
    with refused():
        writer.worker.conn.execute("commit")
    assert run(owner, "select count(*) from invoices").fetchone() == (0,)
