"""A guard that loses something while a session that has applied before goes on (R25).

Its plans remember that the guard was whole. Each damage must reach them, also between two segments
of one transaction, whatever the client does to keep the news from its session.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.guarded import BATCH, DAY, Writer, attach_later, make_table, protect, refused, run
from tests.support import Database, Keys

pytestmark = pytest.mark.rule("R25")
DAMAGE = "alter table invoices disable trigger user"


def applied(owner: psycopg.Connection[Any], writer: Writer, kind: str = "plain") -> None:
    """A protected table, and a session that has been admitted for it, by the quick way too."""
    make_table(owner, "invoices", kind)
    protect(owner, "invoices")
    for _ in range(2):
        with writer.admitted(BATCH):
            pass


@pytest.mark.parametrize(
    "before",
    [
        "select",
        "create temp table t (like pgfence.verdict)",
        "create temp table t of pgfence.verdict",
        "create function pg_temp.f() returns pgfence.verdict"
        " language plpgsql as 'begin return null; end'",
        "prepare p as select * from pgfence.fences, pgfence.protected_tables, pgfence.guards",
        "set local plan_cache_mode = force_generic_plan",
        "set local plan_cache_mode = force_custom_plan",
        "discard plans",
        "do $$ declare r record; begin r := null::pgfence.verdict; end $$",
    ],
)
def test_r25_damage_between_two_segments_of_a_transaction_is_noticed(
    owner: psycopg.Connection[Any], writer: Writer, before: str
) -> None:
    applied(owner, writer)
    with refused("PF202"), writer.worker.transaction():
        run(writer.conn, before)
        writer.admit(BATCH)
        writer.admit(BATCH)  # the control: nothing has happened yet
        run(owner, DAMAGE)
        writer.admit(BATCH)


def test_r25_table_protected_and_damaged_between_two_segments_is_noticed(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    applied(owner, writer)
    make_table(owner, "more", "plain")
    with refused("PF202") as error, writer.worker.transaction():
        writer.admit(BATCH)
        with owner.transaction():
            protect(owner, "more")
            run(owner, "alter table more disable trigger user")
        writer.admit(BATCH)
    assert "more" in str(error)


def test_r25_parent_without_columns_is_noticed(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    """PostgreSQL tells nobody of it: the child's row in the catalog stays as it is."""
    applied(owner, writer)
    with writer.admitted(BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{DAY}', 1)")
    run(owner, "create table parent ()")
    run(owner, "alter table invoices inherit parent")
    with refused("PF202") as error, writer.admitted(BATCH):
        pass
    assert "child of another table" in str(error)
    run(owner, "delete from parent")  # the control: the hole that it is
    assert run(owner, "select from invoices").rowcount == 0
    run(owner, "alter table invoices no inherit parent")
    with writer.admitted(BATCH):
        pass


@pytest.mark.parametrize(
    ("damage", "change"),
    [
        ("alter table {} set unlogged", "alter table {} set logged"),
        ("create rule r as on insert to {} do instead nothing", "drop rule r on {}"),
        ("create rule r as on delete to {} do also select 1", "drop rule r on {}"),
    ],
)
@pytest.mark.parametrize("relation", ["invoices_0", "invoices_later"])
def test_r25_partition_that_no_guard_holds_any_more_is_noticed(
    owner: psycopg.Connection[Any], writer: Writer, relation: str, damage: str, change: str
) -> None:
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    attach_later(owner, "invoices")
    with writer.admitted(BATCH):
        pass
    run(owner, damage.format(relation))
    with refused("PF202") as error, writer.admitted(BATCH):
        pass
    assert relation in str(error)
    run(owner, change.format(relation))
    with writer.admitted(BATCH):
        pass


def test_r25_foreign_partition_is_noticed(
    database: Database, owner: psycopg.Connection[Any], writer: Writer
) -> None:
    run(
        database.connect(),
        "create foreign data wrapper w; create server s foreign data wrapper w;"
        " grant usage on foreign server s to billing_owner",
    )
    run(owner, "create table invoices (batch_date date) partition by list (batch_date)")
    protect(owner, "invoices")
    with writer.admitted(BATCH):
        pass
    run(owner, f"create foreign table f partition of invoices for values in ('{DAY}') server s")
    with refused("PF202") as error, writer.admitted(BATCH):
        pass
    assert "not an ordinary" in str(error)


@pytest.mark.parametrize("inside", ["a savepoint", "a block that fails"])
def test_r25_damage_that_is_rolled_back_is_forgotten_and_one_that_stays_is_not(
    database: Database, owner: psycopg.Connection[Any], keys: Keys, inside: str
) -> None:
    """By the very session that applies: the owner lets everybody run what damages the guard."""
    writer = Writer.login(database, keys)
    applied(owner, writer)
    run(
        owner,
        "create function damage() returns void language sql security definer"
        f" as $$ {DAMAGE.replace('invoices', 'public.invoices')} $$",
    )
    conn = writer.conn
    with refused("PF202"), writer.worker.transaction():
        writer.admit(BATCH)
        if inside == "a savepoint":
            run(conn, "savepoint s")
            run(conn, "select damage()")
            run(conn, "savepoint t")
            with refused("PF202"):
                writer.admit(BATCH)
            run(conn, "rollback to s")
        else:
            run(
                conn,
                "do $$ begin perform damage(); perform 1 / 0;"
                " exception when division_by_zero then null; end $$",
            )
        writer.admit(BATCH)
        run(conn, "select damage()")
        writer.admit(BATCH)
    with writer.admitted(BATCH):
        pass


def test_r25_damage_by_a_prepared_transaction_is_noticed_when_it_is_committed(
    database: Database, owner: psycopg.Connection[Any], writer: Writer
) -> None:
    applied(owner, writer)
    run(owner, "begin")
    run(owner, DAMAGE)
    run(owner, f"prepare transaction 'damage {database.name}'")
    with refused("PF202"), writer.worker.transaction():
        writer.admit(BATCH)
        run(owner, f"commit prepared 'damage {database.name}'")
        writer.admit(BATCH)


@pytest.mark.parametrize("number", [0, 59])
def test_r25_one_of_many_tables_under_nested_and_odd_prefixes_is_noticed(
    owner: psycopg.Connection[Any], writer: Writer, number: int
) -> None:
    templates = [
        "{batch_date}",
        "it's%s/{batch_date}",
        "it's%s/%1$I/{batch_date}",
        "it'{batch_date}",
    ]
    for i in range(60):
        make_table(owner, f"t{i}", "plain")
        protect(owner, f"t{i}", templates[i % 4])
    resource = f"it's%s/%1$I/{DAY}"
    for _ in range(2):
        with writer.admitted(resource):
            pass
    run(owner, f"alter table t{number} disable trigger pgfence_guard_delete")
    with refused("PF202") as error, writer.admitted(resource):
        pass
    assert f"t{number}" in str(error)


@pytest.mark.parametrize(
    "change",
    [
        "alter table invoices rename to bills",
        "alter table invoices set schema moved",
        "alter schema public rename to moved",
        "alter table invoices replica identity full",
        "alter table invoices cluster on invoices_pkey",
        "alter table invoices set (fillfactor = 50)",
        "alter table invoices add column note text",
        "alter table invoices alter column amount type text",
        "alter trigger pgfence_guard_row on invoices rename to zzz",
        "alter table invoices enable row level security",
        "vacuum full invoices",
    ],
)
def test_r25_change_that_takes_nothing_from_the_guard_stops_nobody(
    database: Database, owner: psycopg.Connection[Any], writer: Writer, change: str
) -> None:
    applied(owner, writer)
    superuser = database.connect()
    if "set schema" in change:
        run(superuser, "create schema moved authorization billing_owner")
    run(superuser, change)
    with writer.admitted(BATCH):
        pass
    ((name,),) = run(owner, "select protected_table::text from pgfence.guards").fetchall()
    for role in (None, "billing_owner"):
        conn = database.connect(role)
        with refused():
            run(
                conn,
                "do $$ begin execute format('insert into %s (id, batch_date, amount)"
                f" values (9, ''{DAY}'', 1)', '{name}'); end $$",
            )
