"""Nobody but pgfence writes its tables, and nobody at all lowers a fence (R16, R17, R27)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.support import Database, Keys
from tests.workers import Worker, fence_row

RESOURCE = "invoice-batch/2026-07-19"
Connection = psycopg.Connection[Any]
# Every table, with a column of its own.
TABLES = """
    select c.oid::regclass::text, a.attname
      from pg_class as c join pg_attribute as a on a.attrelid = c.oid and a.attnum = 1
     where c.relkind = 'r'
       and c.relnamespace in ('pgfence'::regnamespace, 'pgfence_registry'::regnamespace)
"""
WRITES = [
    "insert into {table} select * from {table}",
    "update {table} set {column} = {column}",
    "delete from {table}",
    "truncate {table} cascade",
    "select from {table} for update",
    "select from {table} for share",
]


@pytest.fixture
def writer(database: Database) -> Iterator[Connection]:
    """`outsider`, to whom a superuser has granted pg_read_all_data and pg_write_all_data."""
    conn = database.connect("outsider")
    groups = "pg_read_all_data, pg_write_all_data"
    with psycopg.connect(database.dsn(), autocommit=True) as superuser:
        superuser.execute(f"grant {groups} to outsider")
        superuser.execute("grant usage on schema pgfence, pgfence_registry to outsider")
        yield conn
        superuser.execute(f"revoke {groups} from outsider")
        superuser.execute("revoke usage on schema pgfence, pgfence_registry from outsider")


def attempt(conn: Connection, write: str, table: str, column: str) -> str | None:
    """SQLSTATE of one attempt on one table, "no row", or None if it touched one."""
    statement = sql.SQL(write).format(table=sql.SQL(table), column=sql.Identifier(column))
    try:
        cursor = conn.execute(statement)
    except psycopg.Error as error:
        return error.sqlstate
    return None if cursor.rowcount > 0 else "no row"


@pytest.fixture
def filled(database: Database, keys: Keys) -> None:
    """At least one row in the tables that matter."""
    worker = Worker.login(database, keys, "worker_a")
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    worker.apply(held.token, 1, "other")


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("role", ["worker_a", "registry", "auditor", "outsider"])
def test_r27_no_role_writes_or_locks_rows_of_a_pgfence_table(
    database: Database, role: str, write: str
) -> None:
    conn = database.connect(role)
    tables = database.connect().execute(TABLES).fetchall()
    assert len(tables) >= 12
    for table, column in tables:
        assert attempt(conn, write, table, column) == "42501", table


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("write", WRITES)
def test_r27_pg_write_all_data_does_not_open_them_either(
    database: Database, writer: Connection, write: str
) -> None:
    for table, column in database.connect().execute(TABLES).fetchall():
        assert attempt(writer, write, table, column) in {"PF204", "42501", "no row"}, table


def test_r27_a_sequence_that_it_used_up_is_set_back_as_limits_md_says(
    database: Database, writer: Connection
) -> None:
    """PostgreSQL has neither triggers nor row security for sequences."""
    writer.execute("select setval('pgfence.journal_entry_seq', 9223372036854775807)")
    dba = database.connect("dba")
    with pytest.raises(psycopg.errors.SequenceGeneratorLimitExceeded):
        dba.execute("select pgfence.enforce('a/')")
    last = "select setval('pgfence.journal_entry_seq', coalesce(max(entry), 1))"
    dba.execute(f"{last} from pgfence.journal")
    dba.execute("select pgfence.enforce('a/')")
    entries = "select array_agg(entry order by entry) from pgfence.journal"
    assert dba.execute(entries).fetchone() == ([2],)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("write", WRITES[1:])
def test_r27_control_the_same_role_writes_an_open_table(
    database: Database, writer: Connection, write: str
) -> None:
    owner = database.connect("billing_owner")
    owner.execute("create table open_table (id integer)")
    owner.execute("insert into open_table values (1)")
    if write.startswith("truncate"):
        owner.execute("grant truncate on open_table to outsider")
        writer.execute("truncate open_table")
    else:
        assert attempt(writer, write, "open_table", "id") is None


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    "statement",
    [
        "update pgfence.fences set highest_fence = highest_fence - 1",
        "update pgfence.fences set issued_fence = 0",
        "update pgfence.fences set highest_fence = 9007199254740992",
        "update pgfence.fences set issued_fence = 9007199254740992",
        "insert into pgfence.fences (resource, highest_fence) values ('new', -1)",
        "insert into pgfence.fences (resource, issued_fence) values ('new', 9007199254740992)",
        "update pgfence.fences set resource = 'elsewhere'",
        "delete from pgfence.fences",
        "truncate pgfence.fences cascade",
        (
            "insert into pgfence.fences (resource) values ('invoice-batch/2026-07-19')"
            " on conflict (resource) do update set highest_fence = 0"
        ),
        "set session_replication_role = replica; update pgfence.fences set highest_fence = 0",
    ],
)
@pytest.mark.parametrize("role", ["pgfence_owner", None])
def test_r17_highest_fence_never_falls_not_even_by_its_owner(
    database: Database, statement: str, role: str | None
) -> None:
    with psycopg.connect(database.dsn(), autocommit=True) as conn:
        if "session_replication_role" in statement:
            prefix, statement = statement.split("; ")
            conn.execute(prefix)
        if role:
            conn.execute(f"set role {role}")
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(statement)
    assert caught.value.sqlstate in {"PF205", "PF204"}
    if role:
        assert caught.value.sqlstate == "PF205"
    assert fence_row(database, RESOURCE).highest_fence == 1


@pytest.mark.usefixtures("filled")
def test_r17_control_the_owner_may_raise_a_fence(database: Database) -> None:
    with psycopg.connect(database.dsn(), autocommit=True) as conn:
        conn.execute("set role pgfence_owner")
        conn.execute("update pgfence.fences set highest_fence = highest_fence + 1")
    assert fence_row(database, RESOURCE).highest_fence == 2


INTERNAL = """
    select p.oid::regprocedure::text, p.pronargs from pg_proc as p
     where p.pronamespace in ('pgfence'::regnamespace, 'pgfence_registry'::regnamespace)
       and p.proname like '\\_%'
"""


@pytest.mark.parametrize("role", ["worker_a", "registry", "auditor", "outsider"])
def test_r27_internal_functions_cannot_be_called(database: Database, role: str) -> None:
    superuser = database.connect()
    internal = superuser.execute(INTERNAL).fetchall()
    assert len(internal) > 30
    for name, _ in internal:
        allowed = superuser.execute(
            "select has_function_privilege(%s, %s, 'execute')", [role, name]
        ).fetchone()
        assert allowed == (False,), name
    conn = database.connect(role)
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("select pgfence._database_identity()")
    assert caught.value.sqlstate == "42501"


def test_r27_temporary_objects_do_not_shadow_those_of_pgfence(
    database: Database, keys: Keys
) -> None:
    worker = Worker.login(database, keys, "worker_a")
    held = worker.acquire(RESOURCE)
    for statement in (
        "create temp table fences (like pg_class)",
        "create temp table receipts (resource text)",
        "create temp table configuration (audience text)",
        (
            "create function pg_temp.clock_timestamp() returns timestamptz"
            " language sql as $$ select 'epoch'::timestamptz $$"
        ),
        (
            "create function pg_temp.sha256(bytea) returns bytea"
            " language sql as $$ select ''::bytea $$"
        ),
        "set search_path = pg_temp, pg_catalog",
    ):
        worker.conn.execute(statement)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    assert worker.apply(held.token, 2).verdict == "ACCEPTED"
    assert worker.call("select * from pgfence.verify_receipts(%s)", [RESOURCE]).ok
