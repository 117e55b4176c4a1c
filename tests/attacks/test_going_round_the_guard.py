"""Ways to write a protected table without the fence. Each is tried on an open table too, where it
must succeed, and once more with the resource admitted: the guard refuses the attack and only it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg
import pytest

from tests.guarded import (
    BATCH,
    DAY,
    LATER_BATCH,
    LATER_DAY,
    NEXT_BATCH,
    NEXT_DAY,
    Writer,
    attach_later,
    drop_subscription,
    make_table,
    protect,
    refused,
    run,
)
from tests.support import Database, Keys, TestServer, copied, create_database, wait_until
from tests.workers import Worker

pytestmark = pytest.mark.rule("R23")


@dataclass
class Billing:
    """Tables `invoices` (protected) and `open_invoices`, with rows 1 to 3 of `day`."""

    database: Database
    owner: psycopg.Connection[Any]
    writer: Writer
    attacker: psycopg.Connection[Any]
    day: str
    batch: str
    leaf: str

    def rows(self, table: str = "invoices") -> list[Any]:
        return run(
            self.owner, f"select id, batch_date::text, amount from {table} order by 1, 2"
        ).fetchall()


KINDS = ["plain", "partitioned", "attached later"]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def drawn_up(template: Database, keys: Keys) -> Iterator[Callable[[str], Writer]]:
    """The tables of a kind in a database to be copied, and who has written their rows."""
    with ExitStack() as stack:

        @cache
        def draw_up(kind: str) -> Writer:
            name = f"{template.name}_billing_{KINDS.index(kind)}"
            database = stack.enter_context(copied(template, name))
            owner = database.connect("billing_owner")
            for table in ("invoices", "open_invoices"):
                make_table(owner, table, kind)
            protect(owner, "invoices")
            if kind == "attached later":
                for table in ("invoices", "open_invoices"):
                    attach_later(owner, table)
            day, batch, _ = _place(kind)
            writer = Writer.login(database, keys)
            insert = f"insert into {{}} select i, '{day}', 10 from generate_series(1, 3) as i"
            run(writer.conn, insert.format("open_invoices"))
            with writer.admitted(batch) as conn:
                run(conn, insert.format("invoices"))
            database.close()
            return writer

        yield draw_up


def _place(kind: str) -> tuple[str, str, str]:
    """Day and resource of the rows, and what the name of their partition has after the table's."""
    if kind == "attached later":
        return LATER_DAY, LATER_BATCH, "_later"
    return DAY, BATCH, "" if kind == "plain" else "_0"


@pytest.fixture
def billing(drawn_up: Callable[[str], Writer], keys: Keys) -> Iterator[Callable[[str], Billing]]:
    """billing(kind): a copy of such a database."""
    with ExitStack() as stack:

        def copy(kind: str) -> Billing:
            original = drawn_up(kind)
            name = f"{original.database.name}_{next(_numbers)}"
            database = stack.enter_context(copied(original.database, name))
            return Billing(
                database,
                database.connect("billing_owner"),
                Writer.login(database, keys, tokens=original.tokens),
                database.connect("worker_a"),
                *_place(kind),
            )

        yield copy


@pytest.fixture(params=KINDS)
def tables(request: pytest.FixtureRequest, billing: Callable[[str], Billing]) -> Billing:
    return billing(request.param)


@pytest.fixture
def plain(billing: Callable[[str], Billing]) -> Billing:
    return billing("plain")


# {t}: the table, {leaf}: the partition of the day (or the table), {day}; (17): since PostgreSQL 17
STATEMENTS = {
    "insert": "insert into {t} values (9, '{day}', 1)",
    "insert select": "insert into {t} select id + 10, batch_date, amount from {t}",
    "update": "update {t} set amount = 0 where id = 2",
    "update from": "update {t} as i set amount = s.n"
    " from (values (2, 5)) as s(id, n) where i.id = s.id",
    "delete": "delete from {t} where id = 2",
    "on conflict do update": "insert into {t} values (2, '{day}', 1)"
    " on conflict (id, batch_date) do update set amount = excluded.amount",
    "on conflict, insert after all": "insert into {t} values (9, '{day}', 1)"
    " on conflict (id, batch_date) do update set amount = excluded.amount",
    "writable CTE": "with d as (delete from {t} where id = 2 returning *) select count(*) from d",
    "CTE that writes twice": "with d as (delete from {t} where id = 2 returning *),"
    " i as (insert into {t} select id + 7, batch_date, amount from d returning *)"
    " select count(*) from i",
    "merge, update (15)": "merge into {t} as i using (values (2)) as s(id) on i.id = s.id"
    " when matched then update set amount = 0",
    "merge, insert (15)": "merge into {t} as i using (values (9)) as s(id) on i.id = s.id"
    " when not matched then insert values (s.id, '{day}', 1)",
    "merge, delete (15)": "merge into {t} as i using (values (2)) as s(id) on i.id = s.id"
    " when matched then delete",
    "merge, update, returning (17)": "merge into {t} as i using (values (2)) as s(id)"
    " on i.id = s.id when matched then update set amount = 0 returning merge_action()",
    "merge, what has no source (17)": "merge into {t} as i using (values (2)) as s(id)"
    " on i.id = s.id when not matched by source then delete",
    "merge, all of them (15)": "merge into {t} as i using (values (2), (3), (9)) as s(id)"
    " on i.id = s.id when matched and s.id = 2 then update set amount = 0"
    " when matched then delete when not matched then insert values (s.id, '{day}', 1)",
    "merge into the partition (15)": "merge into {leaf} as i using (values (2)) as s(id)"
    " on i.id = s.id when matched then delete",
    "merge in a CTE (17)": "with m as (merge into {t} as i using (values (2)) as s(id)"
    " on i.id = s.id when matched then delete returning i.*) select count(*) from m",
    "merge, returning old (18)": "merge into {t} as i using (values (2)) as s(id)"
    " on i.id = s.id when matched then delete returning old.amount",
    "update, returning old and new (18)": "update {t} set amount = 0 where id = 2"
    " returning old.amount, new.amount",
    "on conflict, returning old and new (18)": "insert into {t} values (2, '{day}', 1)"
    " on conflict (id, batch_date) do update set amount = excluded.amount"
    " returning with (old as o, new as n) o.amount, n.amount",
    "explain analyze": "explain analyze update {t} set amount = 0 where id = 2",
    "only": "update only {leaf} set amount = 0 where id = 2",
    "do block": "do $$ begin update {t} set amount = 0 where id = 2; end $$",
    "dynamic SQL": "do $$ begin execute 'delete from {t} where id = 2'; end $$",
    "update into the partition": "update {leaf} set amount = 0 where id = 2",
    "insert into the partition": "insert into {leaf} values (9, '{day}', 1)",
    "delete from the partition": "delete from {leaf} where id = 2",
}


def skip_before(name: str, conn: psycopg.Connection[Any]) -> None:
    """Skip what came with a later version of PostgreSQL, which its name says in parentheses."""
    since = re.search(r"\((\d\d)\)$", name)
    if since and conn.info.server_version < int(since[1]) * 10_000:
        pytest.skip(f"came with PostgreSQL {since[1]}")


@pytest.mark.parametrize("name", STATEMENTS)
def test_r23_statement_without_admission_is_refused(tables: Billing, name: str) -> None:
    skip_before(name, tables.attacker)
    statement = STATEMENTS[name]

    def on(table: str) -> str:
        return statement.format(t=table, leaf=table + tables.leaf, day=tables.day)

    run(tables.attacker, on("open_invoices"))
    changed = tables.rows("open_invoices")
    before = tables.rows()
    assert changed != before

    with refused() as error:
        run(tables.attacker, on("invoices"))
    assert tables.batch in str(error)
    assert tables.rows() == before

    with tables.writer.admitted(tables.batch) as conn:
        run(conn, on("invoices"))
    assert tables.rows() == changed


COPIES = {
    "into the table": "copy {t} from stdin",
    "into the partition": "copy {leaf} from stdin",
    "with a condition": "copy {t} from stdin where id > 10",
    "column by column": "copy {t} (amount, batch_date, id) from stdin with (format csv, null '-')",
    "past errors (17)": "copy {t} from stdin with (on_error ignore)",
    "past a few errors (18)": "copy {t} from stdin with (on_error ignore, reject_limit 3)",
    "into a view": "copy {t}_view from stdin",
}


@pytest.mark.parametrize("name", COPIES)
def test_r23_copy_without_admission_is_refused(tables: Billing, name: str) -> None:
    skip_before(name, tables.attacker)
    for table in ("invoices", "open_invoices"):
        run(tables.owner, f"create view {table}_view as select * from {table}")
        run(tables.owner, f"grant select, insert on {table}_view to pgfence_app")
        run(
            tables.owner,
            f"create function {table}_insert() returns trigger language plpgsql as"
            f" $$ begin insert into public.{table} values (new.*); return new; end $$",
        )
        run(
            tables.owner,
            f"create trigger t instead of insert on {table}_view"
            f" for each row execute function {table}_insert()",
        )

    def copy(conn: psycopg.Connection[Any], table: str) -> None:
        lines = [f"{number}\t{tables.day}\t1\n" for number in range(10, 20)]
        if "csv" in COPIES[name]:
            lines = [f"1,{tables.day},{number}\n" for number in range(10, 20)]
        elif "ignore" in COPIES[name]:
            lines.insert(5, "x\ty\tz\n")
        statement = COPIES[name].format(t=table, leaf=table + tables.leaf)
        with conn.cursor().copy(statement) as data:
            data.write("".join(lines))

    copy(tables.attacker, "open_invoices")
    with refused():
        copy(tables.attacker, "invoices")
    assert len(tables.rows()) == 3
    with tables.writer.admitted(tables.batch) as conn:
        copy(conn, "invoices")
    assert tables.rows() == tables.rows("open_invoices")
    assert len(tables.rows()) > 3


def test_r23_copy_of_what_a_statement_returns_is_refused(tables: Billing) -> None:
    def copy(conn: psycopg.Connection[Any], table: str) -> None:
        with conn.cursor().copy(
            f"copy (delete from {table} where id = 2 returning id) to stdout"
        ) as rows:
            assert list(rows.rows()) == [("2",)]

    copy(tables.attacker, "open_invoices")
    with refused():
        copy(tables.attacker, "invoices")
    with tables.writer.admitted(tables.batch) as conn:
        copy(conn, "invoices")
    assert tables.rows() == tables.rows("open_invoices")


@pytest.mark.parametrize(
    "write",
    [
        "insert into {v} values (9, '{day}', 1)",
        "update {v} set amount = 0 where id = 2",
        "delete from {v} where id = 2",
    ],
)
def test_r23_write_through_a_view_is_refused(tables: Billing, write: str) -> None:
    for table in ("invoices", "open_invoices"):
        run(tables.owner, f"create view {table}_view as select * from {table} where id > 0")
        run(tables.owner, f"grant select, insert, update, delete on {table}_view to pgfence_app")
    run(tables.attacker, write.format(v="open_invoices_view", day=tables.day))
    with refused():
        run(tables.attacker, write.format(v="invoices_view", day=tables.day))
    with tables.writer.admitted(tables.batch) as conn:
        run(conn, write.format(v="invoices_view", day=tables.day))
    assert tables.rows() == tables.rows("open_invoices")


def test_r23_cursor_prepared_statement_and_definer_function_are_refused(plain: Billing) -> None:
    run(
        plain.owner,
        "create function wipe() returns void language sql security definer"
        " as 'delete from public.invoices'",
    )
    plain.attacker.execute("prepare wipe as delete from invoices where id = $1")
    for attack in ("select wipe()", "execute wipe(2)"):
        with refused():
            run(plain.attacker, attack)
    plain.attacker.execute("begin")
    plain.attacker.execute("declare c cursor for select * from invoices for update")
    plain.attacker.execute("fetch c")
    with refused():
        plain.attacker.execute("delete from invoices where current of c")
    plain.attacker.execute("rollback")
    assert len(plain.rows()) == 3


def test_r23_caught_refusal_leaves_nothing_written(plain: Billing) -> None:
    plain.attacker.execute(
        "do $$ begin delete from invoices; exception when others then null; end $$"
    )
    assert len(plain.rows()) == 3


def test_r23_every_row_of_a_statement_counts(plain: Billing) -> None:
    with plain.writer.admitted(NEXT_BATCH) as conn:
        run(conn, f"insert into invoices select i, '{NEXT_DAY}', 10 from generate_series(1, 3) i")
    with refused() as error, plain.writer.admitted(BATCH) as conn:
        run(conn, "update invoices set amount = 0")
    assert NEXT_BATCH in str(error)
    with refused(), plain.writer.admitted(NEXT_BATCH) as conn:
        run(conn, "delete from invoices")
    with plain.writer.admitted(BATCH, NEXT_BATCH) as conn:
        run(conn, "update invoices set amount = 0")
    assert len(plain.rows()) == 6
    assert {amount for _, _, amount in plain.rows()} == {0}


def test_r23_moving_a_row_needs_both_resources(tables: Billing) -> None:
    away = f"update invoices set batch_date = '{NEXT_DAY}' where id = 2"
    back = f"update invoices set batch_date = '{tables.day}' where id = 2"
    with refused() as error, tables.writer.admitted(tables.batch) as conn:
        run(conn, away)
    assert NEXT_BATCH in str(error)
    with refused() as error, tables.writer.admitted(NEXT_BATCH) as conn:
        run(conn, away)
    assert tables.batch in str(error)
    # there and back within one transaction that holds only one of the two
    with refused(), tables.writer.admitted(tables.batch) as conn:
        run(conn, away)
        run(conn, back)
    before = tables.rows()
    with tables.writer.admitted(tables.batch, NEXT_BATCH) as conn:
        run(conn, away)
    assert (2, NEXT_DAY, 10) in tables.rows()
    with tables.writer.admitted(NEXT_BATCH, tables.batch) as conn:
        run(conn, back)
    assert tables.rows() == before


def test_r23_before_trigger_cannot_smuggle_a_row_into_another_resource(plain: Billing) -> None:
    run(
        plain.owner,
        "create function shift() returns trigger language plpgsql as"
        f" $$ begin new.batch_date := '{NEXT_DAY}'; return new; end $$",
    )
    run(
        plain.owner,
        "create trigger shift before insert or update on invoices"
        " for each row execute function shift()",
    )
    for write in (f"insert into invoices values (9, '{DAY}', 1)", "update invoices set amount = 0"):
        with refused() as error, plain.writer.admitted(BATCH) as conn:
            run(conn, write)
        assert NEXT_BATCH in str(error)
    with plain.writer.admitted(BATCH, NEXT_BATCH) as conn:
        run(conn, "update invoices set amount = 0")
    assert {day for _, day, _ in plain.rows()} == {NEXT_DAY}


def test_r23_write_by_a_trigger_of_another_table_is_refused(plain: Billing) -> None:
    run(plain.owner, "create table orders (id integer)")
    run(plain.owner, "grant insert on orders to pgfence_app")
    run(
        plain.owner,
        "create function wipe() returns trigger language plpgsql security definer as"
        " $$ begin delete from public.invoices; return null; end $$",
    )
    run(
        plain.owner,
        "create trigger wipe after insert on orders for each row execute function wipe()",
    )
    with refused():
        run(plain.attacker, "insert into orders values (1)")
    with plain.writer.admitted(BATCH) as conn:
        run(conn, "insert into orders values (1)")
    assert plain.rows() == []


@pytest.mark.parametrize("action", ["cascade", "set null", "set default"])
def test_r23_foreign_key_action_without_admission_is_refused(tables: Billing, action: str) -> None:
    run(tables.owner, "create table customers (id integer primary key)")
    run(tables.owner, "insert into customers values (0), (1), (2)")
    run(tables.owner, "grant select, update, delete on customers to pgfence_app")
    for table in ("invoices", "open_invoices"):
        run(
            tables.owner,
            f"alter table {table} add column customer integer default 0"
            f" references customers on delete {action} on update cascade",
        )
    run(tables.attacker, "update open_invoices set customer = 1")
    with tables.writer.admitted(tables.batch) as conn:
        run(conn, "update invoices set customer = 1")
    run(tables.owner, "alter table open_invoices rename to hidden_invoices")
    before = tables.rows()

    with refused():
        run(tables.attacker, "delete from customers where id = 1")
    with refused():
        run(tables.attacker, "update customers set id = 7 where id = 1")
    assert tables.rows() == before
    with tables.writer.admitted(tables.batch) as conn:
        run(conn, "delete from customers where id = 1")
    assert tables.rows() == tables.rows("hidden_invoices")


def test_r23_foreign_key_action_on_the_column_that_names_the_resource(
    database: Database, keys: Keys
) -> None:
    owner, writer = database.connect("billing_owner"), Writer.login(database, keys)
    owner.execute("create table batches (name text primary key)")
    owner.execute("insert into batches values ('a')")
    owner.execute(
        "create table lines (id integer, batch text references batches"
        " on update cascade on delete set null)"
    )
    owner.execute("grant select, insert, update, delete on batches, lines to pgfence_app")
    protect(owner, "lines", "lines/{batch}")
    with writer.admitted("lines/a") as conn:
        run(conn, "insert into lines values (1, 'a')")
    with refused(), writer.admitted("lines/a") as conn:
        run(conn, "update batches set name = 'b'")
    with refused() as error, writer.admitted("lines/a") as conn:
        run(conn, "delete from batches")
    assert "no resource" in str(error)
    with writer.admitted("lines/a", "lines/b") as conn:
        run(conn, "update batches set name = 'b'")
    assert run(owner, "select batch from lines").fetchall() == [("b",)]


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_r23_truncate_is_refused_even_when_admitted(
    billing: Callable[[str], Billing], kind: str
) -> None:
    tables = billing(kind)
    run(tables.owner, "create table customers (id integer primary key)")
    for table in ("invoices", "open_invoices"):
        run(tables.owner, f"alter table {table} add column customer integer references customers")
        run(tables.owner, f"grant truncate on {table} to pgfence_app")
        if tables.leaf:
            run(tables.owner, f"grant truncate on {table}{tables.leaf} to pgfence_app")

    for attack in ("truncate invoices", f"truncate invoices{tables.leaf}"):
        with refused() as error:
            run(tables.attacker, attack)
        assert "TRUNCATE" in str(error)
        with refused(), tables.writer.admitted(tables.batch) as conn:
            run(conn, attack)
    assert len(tables.rows()) == 3

    # from the table it references, which takes both tables that reference it
    with refused():
        run(tables.owner, "truncate customers cascade")
    assert len(tables.rows()) == 3
    run(tables.owner, "drop table invoices")
    run(tables.owner, "truncate customers cascade")
    assert tables.rows("open_invoices") == []


@pytest.mark.parametrize(
    "attack",
    [
        "insert into {t} values (9, '{day}', 1)",
        "update {t} set amount = 0",
        "delete from {t}",
        "truncate {t}",
        "insert into {leaf} values (9, '{day}', 1)",
        "update {leaf} set amount = 0",
        "delete from {leaf}",
    ],
)
def test_r23_session_replication_role_does_not_silence_the_guard(
    tables: Billing, attack: str
) -> None:
    if tables.attacker.info.server_version >= 150000:
        with tables.database.connect() as superuser:
            superuser.execute("grant set on parameter session_replication_role to worker_a")
        conn = tables.attacker
        for table in ("invoices", "open_invoices"):
            run(tables.owner, f"grant truncate on {table} to pgfence_app")
    else:  # only a superuser may set it
        conn = tables.database.connect()
    conn.execute("set session_replication_role = replica")

    def on(table: str) -> str:
        return attack.format(t=table, leaf=table + tables.leaf, day=tables.day)

    run(conn, on("open_invoices"))
    before = tables.rows()
    with refused():
        run(conn, on("invoices"))
    assert tables.rows() == before
    if conn is tables.attacker:
        with tables.database.connect() as superuser:
            superuser.execute("revoke set on parameter session_replication_role from worker_a")


@pytest.mark.parametrize(
    "change",
    [
        f"insert into {{}} values (9, '{DAY}', 1)",
        "update {} set amount = 0 where id = 1",
        f"update {{}} set batch_date = '{NEXT_DAY}' where id = 1",
        "delete from {} where id = 1",
        "truncate {}",
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_r23_logical_replication_applies_nothing(
    cluster: TestServer, billing: Callable[[str], Billing], kind: str, change: str
) -> None:
    tables = billing(kind)
    database = tables.database
    change = change.replace(DAY, tables.day)
    source = create_database(cluster, f"{database.name}_source")
    name = database.name
    try:
        origin, subscriber = source.connect(), database.connect()
        for table in ("invoices", "open_invoices"):
            make_table(origin, table, kind)
            if kind == "attached later":
                attach_later(origin, table)
            run(
                origin,
                f"insert into {table} select i, '{tables.day}', 10 from generate_series(1, 3) as i",
            )
        run(
            origin,
            "create publication p for table invoices, open_invoices"
            " with (publish_via_partition_root = true)",
        )
        run(origin, f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
        run(
            subscriber,
            f"create subscription {name} connection '{source.dsn()}' publication p"
            " with (create_slot = false, copy_data = false)",
        )
        try:
            before, opened = tables.rows(), tables.rows("open_invoices")
            run(origin, change.format("open_invoices"))
            wait_until(
                lambda: tables.rows("open_invoices") != opened, "an open table is replicated"
            )
            run(origin, change.format("invoices"))
            wait_until(
                lambda: "public.invoices" in cluster.log().split(name, 1)[-1],
                "the apply worker is refused",
            )
            assert tables.rows() == before
        finally:
            drop_subscription(subscriber, origin, name)
    finally:
        source.drop()


@pytest.mark.parametrize("role", [None, "billing_owner", "outsider"])
def test_r23_superuser_owner_and_stranger_get_the_same_refusal(
    plain: Billing, role: str | None
) -> None:
    for table in ("invoices", "open_invoices"):
        run(plain.owner, f"grant select, insert, update, delete on {table} to outsider")
    conn = plain.database.connect(role)
    for write in (
        f"insert into {{}} values (9, '{DAY}', 1)",
        "update {} set amount = 0",
        "delete from {}",
    ):
        run(conn, write.format("open_invoices"))
        with refused():
            run(conn, write.format("invoices"))


@pytest.mark.rule("R24")
@pytest.mark.parametrize(
    "forgery",
    [
        "set pgfence.admitted = 'invoice-batch/2026-07-19'",
        "set pgfence.fenced_apply = 'ACCEPTED'",
        "select pg_advisory_xact_lock(hashtext('invoice-batch/2026-07-19'))",
        "create temp table admitted_resources as select 'invoice-batch/2026-07-19' as resource",
        "create temp table fences as select 'invoice-batch/2026-07-19' as resource,"
        " pg_current_xact_id() as admitted_transaction, now() as admitted_transaction_start,"
        " pg_backend_pid() as admitted_backend",
        "create function pg_temp.pg_backend_pid() returns integer language sql as 'select 1'",
        "create function pg_temp._is_admitted(anyelement) returns boolean"
        " language sql as 'select true'",
        "set search_path = pg_temp, public, pg_catalog",
        "set role pgfence_app",
    ],
)
def test_r24_what_a_client_can_make_up_admits_nothing(plain: Billing, forgery: str) -> None:
    for conn in (plain.attacker, plain.writer.conn):
        conn.execute("begin")
        run(conn, forgery)
        with refused():
            run(conn, "update public.invoices set amount = 0")
        conn.execute("rollback")
    # nor does it stand in the way of what is admitted
    with plain.writer.worker.transaction():
        run(plain.writer.conn, forgery)
        plain.writer.admit(BATCH)
        run(plain.writer.conn, "update public.invoices set amount = 0")
    assert {amount for _, _, amount in plain.rows()} == {0}


@pytest.mark.rule("R24")
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_r24_admission_ends_with_its_transaction(plain: Billing, isolation: str) -> None:
    with plain.writer.admitted(BATCH) as conn:
        run(conn, "update invoices set amount = 1")
    with refused(), plain.writer.worker.transaction(isolation):
        run(conn, "update invoices set amount = 2")
    conn.execute("begin")
    plain.writer.admit(BATCH)
    conn.execute("commit and chain")
    with refused():
        run(conn, "update invoices set amount = 3")
    conn.execute("rollback")
    assert {amount for _, _, amount in plain.rows()} == {1}


@pytest.mark.rule("R24")
def test_r24_admission_does_not_reach_another_session(plain: Billing) -> None:
    with plain.writer.admitted(BATCH) as conn:
        with refused():
            run(plain.attacker, "update invoices set amount = 2")
        run(conn, "update invoices set amount = 1")
    assert {amount for _, _, amount in plain.rows()} == {1}


@pytest.mark.rule("R24")
def test_r24_admission_is_lost_with_its_savepoint(plain: Billing) -> None:
    conn = plain.writer.conn
    with plain.writer.worker.transaction():
        conn.execute("savepoint s")
        plain.writer.admit(BATCH)
        run(conn, "update invoices set amount = 1")
        conn.execute("rollback to savepoint s")
        conn.execute("savepoint t")
        with refused():
            run(conn, "update invoices set amount = 2")
        conn.execute("rollback to savepoint t")
    assert {amount for _, _, amount in plain.rows()} == {10}


@pytest.mark.rule("R24")
def test_r24_only_accepted_admits(plain: Billing, keys: Keys) -> None:
    worker = Worker.login(plain.database, keys, "worker_b")
    token = worker.acquire(NEXT_BATCH).token
    write = f"insert into invoices select count(*), '{NEXT_DAY}', 1 from invoices"
    answers: dict[str, Callable[[], Any]] = {
        "ADVANCED": lambda: worker.advance(token),
        "SEGMENT_GAP": lambda: worker.apply(token, 2),
        "MALFORMED": lambda: worker.apply("v4.public.x", 1),
        "ACCEPTED": lambda: worker.apply(token, 1),
        "REPLAYED": lambda: worker.apply(token, 1),
        "PAYLOAD_CONFLICT": lambda: worker.apply(token, 1, "another payload"),
    }
    for answer, ask in answers.items():
        worker.conn.execute("begin")
        assert ask().verdict == answer
        if answer == "ACCEPTED":
            run(worker.conn, write)
            worker.conn.execute("commit")
        else:
            with refused():
                run(worker.conn, write)
            worker.conn.execute("rollback")
            if answer == "ADVANCED":
                assert worker.advance(token).verdict == "ADVANCED"
    assert (3, NEXT_DAY, 1) in plain.rows()


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_r51_reading_the_fence_and_deciding_oneself_is_refused(
    plain: Billing, keys: Keys, isolation: str
) -> None:
    conn = plain.attacker
    conn.execute(f"begin isolation level {isolation}")
    position = conn.execute("select highest_fence from pgfence.position(%s)", [BATCH]).fetchone()
    assert position == (1,)
    with plain.writer.admitted(BATCH) as other:
        run(other, "update invoices set amount = 5 where id = 1")
    with refused():
        run(conn, "update invoices set amount = 0 where id = 2")
    conn.execute("rollback")
