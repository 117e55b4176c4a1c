"""Code of a user's (types, casts, defaults, views, names) that a guard might run as pgfence_owner.

The guard reads rows of tables that users make. Whatever they put there, `witness()` must never see
pgfence_owner as its current user: that is who may write fences and receipts.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.guarded import BATCH, DAY, Writer, make_table, protect, refused, run
from tests.support import Database, Keys

pytestmark = pytest.mark.rule("R26")

# a type with a cast to text that runs witness(): who am I?
EVIL_TYPE = """
    create table seen (who text);
    grant insert, select on seen to public;
    create function witness() returns text language plpgsql as
        $$ begin insert into public.seen values (current_user); return 'x'; end $$;
    create type evil as (name text);
    create function evil_text(evil) returns text language sql as 'select public.witness()';
    create function evil_date(evil) returns date language sql
        as $$ select public.witness(); select date '2026-07-19' $$;
    create function evil_equal(evil, evil) returns boolean language sql
        as $$ select public.witness() = 'x' $$;
    create function evil_append(text, evil) returns text language sql as 'select public.witness()';
    create cast (evil as text) with function evil_text(evil) as implicit;
    create cast (evil as date) with function evil_date(evil) as implicit;
    create operator = (function = evil_equal, leftarg = evil, rightarg = evil);
    create operator || (function = evil_append, leftarg = text, rightarg = evil);
"""


@pytest.fixture
def owner(database: Database) -> psycopg.Connection[Any]:
    conn = database.connect("billing_owner")
    run(conn, EVIL_TYPE)
    return conn


def seen(conn: psycopg.Connection[Any]) -> set[str]:
    return {who for (who,) in run(conn, "select who from seen")}


def test_r26_witness_sees_a_careless_trigger(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    """Negative control: a definer trigger that renders without looking at types is caught."""
    run(owner, "create table invoices (id integer, batch evil)")
    superuser = database.connect()
    run(
        superuser,
        "create function public.careless() returns trigger language plpgsql security definer as"
        " $$ begin perform max('x/' || n.batch::text) from new_rows as n; return null; end $$",
    )
    run(superuser, "grant usage on schema public to pgfence_owner")
    run(superuser, "alter function public.careless() owner to pgfence_owner")
    run(
        superuser,
        "create trigger careless after insert on invoices referencing new table as new_rows"
        " for each statement execute function careless()",
    )
    run(owner, "insert into invoices values (1, row('a')::evil)")
    assert seen(owner) == {"pgfence_owner"}


@pytest.mark.parametrize("column_type", ["text", "date"])
@pytest.mark.parametrize("kind", ["plain", "partitioned"])
@pytest.mark.parametrize("snapshot", ["fresh", "taken before"])
def test_r26_column_changed_to_a_type_of_a_users(
    database: Database,
    owner: psycopg.Connection[Any],
    keys: Keys,
    column_type: str,
    kind: str,
    snapshot: str,
) -> None:
    partition = "partition by list (id)" if kind == "partitioned" else ""
    run(owner, f"create table invoices (id integer, batch {column_type}) {partition}")
    run(owner, "grant select, insert, update, delete on invoices to pgfence_app")
    if partition:
        run(owner, "create table invoices_1 partition of invoices for values in (1)")
    protect(owner, "invoices", "invoice-batch/{batch}")
    if partition:  # the row trigger alone
        run(owner, "create table invoices_2 partition of invoices for values in (2)")
    writer = Writer.login(database, keys)
    with writer.admitted(BATCH) as conn:
        run(
            conn,
            f"insert into invoices values (1, '{DAY}'), (2, '{DAY}')"
            if partition
            else f"insert into invoices values (1, '{DAY}')",
        )

    attacker = database.connect("worker_a")
    attacker.execute("begin isolation level repeatable read")
    if snapshot == "taken before":
        attacker.execute("select from pg_class")
    run(owner, "alter table invoices alter column batch type evil using row(batch::text)::evil")
    run(owner, "delete from seen")
    for id_ in (1, 2) if partition else (1,):
        for attack in (
            f"insert into invoices values ({id_}, row('a')::evil)",
            f"update invoices set batch = row('b')::evil where id = {id_}",
            f"delete from invoices where id = {id_}",
        )[: 1 if snapshot == "taken before" else 3]:  # which sees no row of the rewritten table
            attacker.execute("savepoint s")
            with refused("PF202") as error:
                run(attacker, attack)
            assert "type" in str(error)
            attacker.execute("rollback to savepoint s")
    attacker.execute("commit")
    assert seen(owner) == set()


def test_r26_a_session_that_wrote_before_the_change_is_refused_too(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    run(owner, "create table invoices (id integer, batch text)")
    run(owner, "grant select, insert, update, delete on invoices to pgfence_app")
    protect(owner, "invoices", "invoice-batch/{batch}")
    writer = Writer.login(database, keys)
    with writer.admitted(BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{DAY}')")
    run(owner, "alter table invoices alter column batch type evil using row(batch)::evil")
    run(owner, "delete from seen")
    with pytest.raises(psycopg.Error) as caught, writer.admitted(BATCH) as conn:
        run(conn, "insert into invoices values (1, row('a')::evil)")
    assert caught.value.sqlstate in ("PF202", "42804")
    assert seen(owner) == set()


@pytest.mark.parametrize("row_type", ["evil", "evil_domain", "evil[]"])
def test_r26_protect_refuses_types_of_users(owner: psycopg.Connection[Any], row_type: str) -> None:
    run(owner, "create domain evil_domain as text check (value is null or length(witness()) > 0)")
    run(owner, f"create table invoices (id integer, batch {row_type})")
    with refused("PF304"):
        protect(owner, "invoices", "invoice-batch/{batch}")
    assert seen(owner) == set()


def test_r26_other_columns_are_never_read(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    run(
        owner,
        "create table invoices (id integer, batch text, extra evil default row('a'),"
        " who text default witness(), made text generated always as (upper(batch)) stored)",
    )
    run(owner, "grant select, insert, update, delete on invoices to pgfence_app")
    run(owner, "alter table invoices enable row level security")
    run(owner, "create policy p on invoices using (witness() = 'x') with check (witness() = 'x')")
    protect(owner, "invoices", "invoice-batch/{batch}")
    assert seen(owner) == set()
    writer = Writer.login(database, keys)
    with writer.admitted(BATCH) as conn:
        run(conn, f"insert into invoices (id, batch) values (1, '{DAY}')")
        run(conn, "update invoices set extra = row('b')")
        run(conn, "delete from invoices")
    assert seen(owner) == {"worker_a"}


def test_r26_guard_function_on_a_trigger_of_ones_own(owner: psycopg.Connection[Any]) -> None:
    """Without transition tables the guard's names would be those of temporary views."""
    run(owner, "create table invoices (id integer, batch text)")
    protect(owner, "invoices", "invoice-batch/{batch}")
    run(owner, "create table bait (id integer, batch text)")
    for operation in ("insert", "update", "delete"):
        run(
            owner,
            f"create trigger bait_{operation} after {operation} on bait"
            " for each statement execute function pgfence._guard_1()",
        )
    for name in ("pgfence_new_rows", "pgfence_old_rows"):
        run(owner, f"create temp view {name} as select 1 as id, public.witness() as batch")
    for attack in (
        "insert into bait values (1, 'a')",
        "update bait set id = 2",
        "delete from bait",
    ):
        with refused() as error:
            run(owner, attack)
        assert "temporary" in str(error)
    run(owner, "drop view pg_temp.pgfence_new_rows, pg_temp.pgfence_old_rows")
    with pytest.raises(psycopg.errors.UndefinedTable):
        run(owner, "insert into bait values (1, 'a')")
    assert seen(owner) == set()


def test_r26_temporary_relation_with_the_name_of_a_guards_rows_only_refuses(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    writer = Writer.login(database, keys)
    run(writer.conn, "create temp table pgfence_new_rows (id integer, batch_date date)")
    with refused(), writer.admitted(BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{DAY}', 1)")
    run(writer.conn, "drop table pg_temp.pgfence_new_rows")
    with writer.admitted(BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{DAY}', 1)")


@pytest.mark.parametrize(
    "column",
    [
        "Batch",
        "select",
        'a"b',
        "a'b",
        "a\\b",
        "a%sb%1$s%I",
        "a\nb; drop table seen --",
        "$guard$",
        "v_row",
        "v_resource",
        "new",
        "tg_op",
        "c1",
        "Zähler",
        "a b",
    ],
)
def test_r26_name_of_a_column_is_never_code(
    database: Database, owner: psycopg.Connection[Any], keys: Keys, column: str
) -> None:
    name = psycopg.sql.Identifier(column).as_string(owner)
    run(owner, f"create table invoices (id integer, {name.replace('%', '%')} text)")
    run(owner, "grant select, insert, update, delete on invoices to pgfence_app")
    protect(owner, "invoices", f"it's/{{{column}}}/%s$$")
    writer = Writer.login(database, keys)
    with refused() as error:
        run(writer.conn, "insert into invoices values (1, 'x')")
    assert "it's/x/%s$$" in str(error)
    with writer.admitted("it's/x/%s$$") as conn:
        run(conn, "insert into invoices values (1, 'x')")
        run(conn, "update invoices set id = 2")
        run(conn, "delete from invoices")
    run(owner, "select from seen")


@pytest.mark.parametrize("role", ["worker_a", "registry", "auditor", "outsider"])
def test_r26_internal_functions_of_the_guard_are_closed(
    database: Database, owner: psycopg.Connection[Any], role: str
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    conn = database.connect(role)
    for call in (
        "pgfence._attest_guards('a')",
        "pgfence._guard_source('invoices', 'a')",
        "pgfence._refuse_write(1, 'INSERT', 'a')",
        "pgfence._refuse_changed_column(1)",
        "pgfence._refuse_shadowed(1)",
        "pgfence._template_pieces('a')",
        "pgfence._render_expression(25, 'a', null)",
        "pgfence._guard_1()",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(conn, f"select {call}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(conn, "create trigger g after insert on seen execute function pgfence._guard_1()")


def test_r26_guard_functions_are_pinned_commented_and_closed(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    ((name, config, definer, comment, acl),) = run(
        database.connect(),
        "select p.oid::regprocedure::text, proconfig, prosecdef, obj_description(p.oid, 'pg_proc'),"
        " proacl::text[]"
        " from pg_proc as p where proname ~ '^_guard_[0-9]'",
    ).fetchall()
    assert (name, config, definer) == (
        "pgfence._guard_1()",
        ["search_path=pg_catalog, pg_temp"],
        True,
    )
    assert comment
    assert sorted(grant.split("=")[0] for grant in acl) == ["billing_owner", "pgfence_owner"]
