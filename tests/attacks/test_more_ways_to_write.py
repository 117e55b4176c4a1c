"""Corners of PostgreSQL through which a row of a protected table can change (R23)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.guarded import (
    BATCH,
    DAY,
    NEXT_BATCH,
    NEXT_DAY,
    Writer,
    make_table,
    protect,
    refused,
    run,
)
from tests.support import Database

pytestmark = pytest.mark.rule("R23")


def fill(owner: psycopg.Connection[Any], writer: Writer, kind: str = "plain") -> None:
    """`invoices`, protected, and `open_invoices`, with rows 1 to 3 of DAY."""
    for table in ("open_invoices", "invoices"):
        make_table(owner, table, kind)
        run(owner, f"insert into {table} select i, '{DAY}', 10 from generate_series(1, 3) as i")
    protect(owner, "invoices")


def amounts(owner: psycopg.Connection[Any], table: str = "invoices") -> list[int]:
    return [int(amount) for (amount,) in run(owner, f"select amount from {table} order by id")]


VIEWS = {
    "security invoker (15)": (
        "create view {t}_view with (security_invoker = true) as select * from {t}",
    ),
    "security barrier": ("create view {t}_view with (security_barrier) as select * from {t}",),
    "check option": (
        "create view {t}_view as select * from {t} where id < 9 with cascaded check option",
    ),
    "instead of trigger": (
        "create view {t}_view as select * from {t} union all select 0, current_date, 0",
        "create function {t}_f() returns trigger language plpgsql security definer as $$ begin"
        " update public.{t} set amount = new.amount where id = new.id; return new; end $$",
        "create trigger t instead of update on {t}_view for each row execute function {t}_f()",
    ),
    "rule": (
        "create view {t}_view as select * from {t} union all select 0, current_date, 0",
        "create rule r as on update to {t}_view do instead"
        " update {t} set amount = new.amount where id = new.id",
    ),
    "view of a view": (
        "create view {t}_low as select * from {t}",
        "create view {t}_view as select * from {t}_low",
    ),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_r23_write_through_any_kind_of_view_is_refused(
    owner: psycopg.Connection[Any], writer: Writer, kind: str, view: tuple[str, ...]
) -> None:
    if "security_invoker" in view[0] and owner.info.server_version < 150000:
        pytest.skip("security_invoker came with PostgreSQL 15")
    fill(owner, writer, kind)
    for table in ("open_invoices", "invoices"):
        for statement in view:
            run(owner, statement.format(t=table))
        run(owner, f"grant select, update on {table}_view to pgfence_app")
    write = "update {}_view set amount = 0 where id = 2"
    run(writer.conn, write.format("open_invoices"))
    assert amounts(owner, "open_invoices") == [10, 0, 10]
    with refused():
        run(writer.conn, write.format("invoices"))
    with writer.admitted(BATCH) as conn:
        run(conn, write.format("invoices"))
    assert amounts(owner) == [10, 0, 10]


def test_r23_copy_freeze_into_a_table_that_was_made_and_protected_in_the_same_transaction(
    owner: psycopg.Connection[Any],
) -> None:
    def make_and_copy(table: str) -> None:
        with owner.transaction():
            make_table(owner, table, "plain")
            if table == "invoices":
                protect(owner, table)
            with owner.cursor().copy(f"copy {table} from stdin with (freeze)") as data:
                data.write_row((1, DAY, 1))

    make_and_copy("open_invoices")
    with refused():
        make_and_copy("invoices")


@pytest.mark.parametrize("setting", ["regress", "on"])
def test_r24_parallel_workers_neither_admit_nor_stand_in_the_way(
    owner: psycopg.Connection[Any], writer: Writer, setting: str
) -> None:
    fill(owner, writer)
    mode = "debug_parallel_query" if owner.info.server_version >= 160000 else "force_parallel_mode"
    for statement in (
        f"set {mode} = {setting}",
        "set parallel_setup_cost = 0",
        "set parallel_tuple_cost = 0",
        "set min_parallel_table_scan_size = 0",
    ):
        run(writer.conn, statement)
    write = "update {} set amount = 0 where id in (select id from open_invoices)"
    with refused():
        run(writer.conn, write.format("invoices"))
    run(writer.conn, write.format("open_invoices"))
    for _ in range(2):
        with writer.admitted(BATCH) as conn:
            run(conn, write.format("invoices"))
    assert amounts(owner) == amounts(owner, "open_invoices") == [0, 0, 0]


def test_r23_generated_column_that_names_the_resource_moves_the_row(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    run(
        owner,
        "create table lines (id integer, day integer,"
        " batch text generated always as ('d' || day::text) stored)",
    )
    run(owner, "grant select, insert, update, delete on lines to pgfence_app")
    protect(owner, "lines", "lines/{batch}")
    with writer.admitted("lines/d1") as conn:
        run(conn, "insert into lines values (1, 1)")
    for resource in ("lines/d1", "lines/d2"):
        with refused(), writer.admitted(resource) as conn:
            run(conn, "update lines set day = 2")
    with writer.admitted("lines/d1", "lines/d2") as conn:
        run(conn, "update lines set day = 2")
    assert run(owner, "select batch from lines").fetchall() == [("d2",)]


@pytest.mark.parametrize(
    "expression", ["date '2026-07-20'", "coalesce(null, other)", "spy_date(other)"]
)
def test_r26_column_that_became_a_virtual_one_names_no_resource(
    owner: psycopg.Connection[Any], writer: Writer, expression: str
) -> None:
    if owner.info.server_version < 180000:
        pytest.skip("virtual columns came with PostgreSQL 18")
    run(owner, "create table seen (who text)")
    run(owner, "grant insert on seen to public")
    run(owner, "create table lines (id integer, other date, batch_date date)")
    run(owner, "grant select, insert, update, delete on lines to pgfence_app")
    protect(owner, "lines")
    run(owner, "alter table lines drop column batch_date")
    if "spy" in expression:
        run(
            owner,
            "create function spy_date(date) returns date language plpgsql immutable as"
            " $$ begin insert into public.seen values (current_user); return $1; end $$",
        )
        with pytest.raises(psycopg.Error):  # no function of a user's stands there at all
            run(owner, f"alter table lines add batch_date date generated always as ({expression})")
        return
    run(owner, f"alter table lines add batch_date date generated always as ({expression}) virtual")
    # PostgreSQL does not compute such a column for who reads the rows of a statement
    with refused("PF202") as error, writer.admitted(NEXT_BATCH):
        pass
    assert "no stored column" in str(error)
    with pytest.raises(psycopg.errors.InternalError):
        run(writer.conn, f"insert into lines values (1, '{NEXT_DAY}')")


def test_r23_columns_that_change_their_names_are_taken_by_their_names(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    run(owner, "create table lines (id integer, other date, batch_date date)")
    run(owner, "grant select, insert, update, delete on lines to pgfence_app")
    protect(owner, "lines")
    with writer.admitted(BATCH) as conn:
        run(conn, f"insert into lines values (1, '{NEXT_DAY}', '{DAY}')")
    run(owner, "alter table lines rename batch_date to x")
    with refused("PF202"), writer.admitted(BATCH):
        pass
    with pytest.raises(psycopg.errors.UndefinedColumn):
        run(writer.conn, "delete from lines")
    run(owner, "alter table lines rename other to batch_date")
    with refused(), writer.admitted(BATCH) as conn:
        run(conn, "delete from lines")
    with writer.admitted(NEXT_BATCH) as conn:
        run(conn, "delete from lines")


@pytest.mark.rule("R24")
def test_r24_prepared_transaction_takes_its_admission_with_it(
    database: Database, owner: psycopg.Connection[Any], writer: Writer
) -> None:
    fill(owner, writer)
    run(writer.conn, "begin")
    writer.admit(BATCH)
    run(writer.conn, "update invoices set amount = 1")
    run(writer.conn, f"prepare transaction '{database.name}'")
    for _ in range(2):
        with refused():
            run(writer.conn, f"insert into invoices values (9, '{DAY}', 2)")
        if run(owner, "select from pg_prepared_xacts").rowcount:
            run(writer.conn, f"commit prepared '{database.name}'")
    assert amounts(owner) == [1, 1, 1]


def test_r23_statement_that_admits_itself_is_refused_for_any_other_resource(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    fill(owner, writer)
    token = writer.worker.acquire(NEXT_BATCH).token
    attack = (
        "with a as materialized (select verdict from pgfence.fenced_apply(%s, 1, 'p'))"
        " insert into invoices select 9, %s::date, 1 from a where verdict = 'ACCEPTED'"
    )
    with refused():
        writer.conn.execute(attack, [token, DAY])
    writer.conn.execute(attack, [token, NEXT_DAY])
    assert run(owner, "select from invoices").rowcount == 4


def test_r24_function_that_swallows_a_failed_admission_writes_nothing(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    fill(owner, writer)
    token = writer.worker.acquire(BATCH).token
    run(
        writer.conn,
        "create function pg_temp.f(p_token text) returns integer language plpgsql as $$ begin"
        " begin perform pgfence.fenced_apply(p_token, 1, 'p'); perform 1 / 0;"
        " exception when division_by_zero then null; end;"
        " return 0; end $$",
    )
    attack = "update invoices set amount = pg_temp.f(%s) where id = 1"
    with refused():
        writer.conn.execute(attack, [token])
    writer.conn.execute(attack.replace("invoices", "open_invoices"), [token])
    assert amounts(owner) == [10, 10, 10]
    assert amounts(owner, "open_invoices") == [0, 10, 10]


@pytest.mark.parametrize("rows", ["first", "last", "middle", "all but one"])
@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_r23_one_row_among_many_is_found_wherever_it_stands(
    owner: psycopg.Connection[Any], writer: Writer, rows: str, kind: str
) -> None:
    fill(owner, writer, kind)
    strange = {"first": "i = 1", "last": "i = 100", "middle": "i = 50", "all but one": "i <> 50"}
    insert = (
        f"insert into {{}} select i + 100, case when {strange[rows]} then date '{NEXT_DAY}'"
        f" else date '{DAY}' end, 1 from generate_series(1, 100) as i"
    )
    run(writer.conn, insert.format("open_invoices"))
    for resource in (BATCH, NEXT_BATCH):
        with refused(), writer.admitted(resource) as conn:
            run(conn, insert.format("invoices"))
    with writer.admitted(BATCH, NEXT_BATCH) as conn:
        run(conn, insert.format("invoices"))
        for statement in (
            f"update {{}} set batch_date = case batch_date when '{DAY}' then date '{NEXT_DAY}'"
            f" else date '{DAY}' end",
            "delete from {} where id > 100",
        ):
            run(conn, "savepoint s")
            run(conn, statement.format("invoices"))
            run(conn, "release s")
    with refused(), writer.admitted(NEXT_BATCH) as conn:
        run(conn, "insert into invoices select * from invoices where false")
        run(conn, "update invoices set amount = 0 where false")
        run(conn, "delete from invoices where false")
        run(conn, f"update invoices set batch_date = '{DAY}'")
