"""Taking the guard off without being entitled to, and removing the trace of it (R26)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.guarded import BATCH, DAY, Writer, make_table, protect, refused, run
from tests.support import Database, Keys

pytestmark = pytest.mark.rule("R26")

CALLS = ("unprotect", "finish_unprotection")


@pytest.fixture
def owner(database: Database) -> psycopg.Connection[Any]:
    """The owner of a protected table, `invoices`."""
    conn = database.connect("billing_owner")
    make_table(conn, "invoices", "plain")
    run(conn, "grant all on invoices to worker_b")
    protect(conn, "invoices")
    return conn


def take_off(conn: psycopg.Connection[Any], call: str = "unprotect") -> None:
    run(conn, f"select pgfence.{call}('public.invoices')")


def still_guarded(database: Database) -> None:
    with refused():
        run(database.connect("worker_b"), f"insert into invoices values (1, '{DAY}', 1)")


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("role", ["worker_b", "registry", "auditor", "outsider"])
def test_r26_who_does_not_own_the_table_cannot_take_its_guard_off(
    database: Database, role: str, call: str
) -> None:
    with refused("42501"):
        take_off(database.connect(role), call)
    still_guarded(database)


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize("call", CALLS)
def test_r26_members_of_pgfence_owner_do_not_own_the_tables(database: Database, call: str) -> None:
    dba = database.connect("dba")
    with refused("42501"):
        take_off(dba, call)
    run(dba, "set role pgfence_owner")
    with refused("42501"):
        take_off(dba, call)
    still_guarded(database)


def test_r26_control_the_owner_takes_it_off(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    take_off(owner)
    run(database.connect("worker_b"), f"insert into invoices values (1, '{DAY}', 1)")


@pytest.mark.parametrize("call", CALLS)
def test_r26_workload_that_has_come_to_own_the_table_cannot_hide_that_the_guard_is_gone(
    database: Database, keys: Keys, owner: psycopg.Connection[Any], call: str
) -> None:
    superuser = database.connect()
    run(superuser, "grant billing_owner to worker_b")
    try:
        worker = database.connect("worker_b")
        for role in ("worker_b", "billing_owner"):
            run(worker, f"set role {role}")
            with refused("42501") as error:
                take_off(worker, call)
            if call == "finish_unprotection":
                assert "acts for a workload" in str(error)
        run(worker, "drop trigger pgfence_guard_insert on invoices")  # no right can stop an owner
    finally:
        run(superuser, "revoke billing_owner from worker_b")
    with refused("PF202"), Writer.login(database, keys).admitted(BATCH):
        pass


FORGETTING = (
    "delete from pgfence.journal",
    "truncate pgfence.journal",
    "update pgfence.journal set session_role = 'nobody'",
    "truncate pgfence.protected_tables",
)
INVENTING = "insert into pgfence.journal (action, reason, detail) values ('PROTECTED', '', '{}')"
REPLICA = "set session_replication_role = replica"
ATTEMPTS = [
    *((role, "42501", "", s) for role in ("billing_owner", "worker_b") for s in FORGETTING),
    *(("pgfence_owner", "PF204", "set role pgfence_owner", s) for s in FORGETTING),
    *((None, "PF204", "", s) for s in (*FORGETTING, INVENTING)),
    *((None, "PF204", REPLICA, s) for s in (*FORGETTING, INVENTING)),
    ("auditor", "42501", "", INVENTING),
]


@pytest.mark.parametrize(("role", "sqlstate", "first", "statement"), ATTEMPTS)
def test_r26_trace_cannot_be_removed_or_invented(
    database: Database,
    owner: psycopg.Connection[Any],
    role: str | None,
    sqlstate: str,
    first: str,
    statement: str,
) -> None:
    take_off(owner)
    lines = "select * from pgfence.journal order by entry"
    before = run(database.connect(), lines).fetchall()
    conn = database.connect("dba" if role == "pgfence_owner" else role)
    if first:
        run(conn, first)
    with refused(sqlstate):
        run(conn, statement)
    assert run(database.connect(), lines).fetchall() == before


def test_r26_member_of_pgfence_owner_who_removes_the_record_by_hand_leaves_a_line(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    dba = database.connect("dba")
    run(dba, "set role pgfence_owner")
    run(dba, "delete from pgfence.protected_tables")
    lines = "select action, session_role from pgfence.journal order by entry"
    assert run(database.connect("auditor"), lines).fetchall() == [
        ("PROTECTED", "billing_owner"),
        ("UNPROTECTED", "dba"),
    ]
