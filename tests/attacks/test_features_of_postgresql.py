"""What else PostgreSQL's documentation offers for changing rows: chains of foreign keys, keys over
time, constraints that are not enforced, code in places where nobody looks for it (R23, R24)."""

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
    drop_subscription,
    make_table,
    protect,
    refused,
    run,
)
from tests.support import Database, TestServer, create_database, wait_until

pytestmark = pytest.mark.rule("R23")


def fill(owner: psycopg.Connection[Any], kind: str = "plain", more: str = "") -> None:
    """`invoices`, protected, and `open_invoices`, with rows 1 to 3 of DAY, and 4 to 6 of `more`."""
    insert = "insert into {} select i, '{}', 10 from generate_series({}, {}) as i"
    for table in ("open_invoices", "invoices"):
        make_table(owner, table, kind)
        run(owner, insert.format(table, DAY, 1, 3))
        if more:
            run(owner, insert.format(table, more, 4, 6))
    protect(owner, "invoices")


def rows(owner: psycopg.Connection[Any], table: str = "invoices") -> list[Any]:
    return run(owner, f"select * from {table} order by 1, 2").fetchall()


# Foreign keys


@pytest.mark.parametrize(
    "change", ["delete from {} where id = 1", "update {} set id = 9 where id = 1"]
)
def test_r23_foreign_key_of_a_table_to_itself_reaches_no_other_resource(
    owner: psycopg.Connection[Any], writer: Writer, change: str
) -> None:
    for table in ("lines", "open_lines"):
        run(
            owner,
            f"create table {table} (id integer primary key, batch_date date, parent integer"
            f" references {table} on delete cascade on update cascade)",
        )
        run(owner, f"grant select, update, delete on {table} to pgfence_app")
        run(
            owner,
            f"insert into {table} values (1, '{DAY}', null), (2, '{DAY}', 1), (3, '{DAY}', 2),"
            f" (4, '{NEXT_DAY}', 3), (5, '{NEXT_DAY}', 1)",
        )
    protect(owner, "lines")
    run(writer.conn, change.format("open_lines"))
    before = rows(owner, "lines")
    assert rows(owner, "open_lines") != before
    for resource, other in ((BATCH, NEXT_BATCH), (NEXT_BATCH, BATCH)):
        with refused() as error, writer.admitted(resource) as conn:
            run(conn, change.format("lines"))
        assert other in str(error)
    assert rows(owner, "lines") == before
    with writer.admitted(BATCH, NEXT_BATCH) as conn:
        run(conn, change.format("lines"))
    assert rows(owner, "lines") == rows(owner, "open_lines")


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_r23_chain_of_foreign_keys_through_open_tables_is_refused(
    owner: psycopg.Connection[Any], writer: Writer, kind: str
) -> None:
    fill(owner, kind)
    run(owner, "create table regions (id integer primary key)")
    run(
        owner,
        "create table customers (id integer primary key,"
        " region integer references regions on delete cascade)",
    )
    run(owner, "insert into regions values (1)")
    run(owner, "insert into customers values (1, 1), (2, 1)")
    run(owner, "grant select, delete on regions, customers to pgfence_app")
    for table in ("invoices", "open_invoices"):
        run(
            owner,
            f"alter table {table} add customer integer references customers on delete cascade",
        )
    run(owner, "update open_invoices set customer = 1")
    with writer.admitted(BATCH) as conn:
        run(conn, "update invoices set customer = 2")
    run(writer.conn, "delete from customers where id = 1")
    assert rows(owner, "open_invoices") == []
    with refused():
        run(writer.conn, "delete from regions")
    with refused(), writer.admitted(NEXT_BATCH) as conn:
        run(conn, "delete from regions")
    assert len(rows(owner)) == 3
    with writer.admitted(BATCH) as conn:
        run(conn, "delete from regions")
    assert rows(owner) == []


def test_r23_key_over_time_and_what_refers_to_it(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    if owner.info.server_version < 180000:
        pytest.skip("WITHOUT OVERLAPS and PERIOD came with PostgreSQL 18")
    for table in ("prices", "open_prices"):
        run(
            owner,
            f"create table {table} (item int4range, during daterange, batch_date date,"
            " primary key (item, during without overlaps))",
        )
        run(owner, f"grant select, insert, update, delete on {table} to pgfence_app")
        run(owner, f"insert into {table} values ('[1,2)', '[2026-01-01,2027-01-01)', '{DAY}')")
    run(
        owner,
        "create table offers (item int4range, during daterange, batch_date date,"
        " foreign key (item, period during) references prices (item, period during))",
    )
    run(owner, "grant select, insert, update, delete on offers to pgfence_app")
    protect(owner, "prices")
    protect(owner, "offers")
    for write in (
        "update {} set during = '[2026-02-01,2027-01-01)'",
        f"insert into {{}} values ('[1,2)', '[2027-01-01,2028-01-01)', '{DAY}')",
        f"insert into {{}} values ('[1,2)', '[2026-05-01,2026-06-01)', '{DAY}')"
        " on conflict do nothing",
        "delete from {} where during @> date '2026-06-01'",
    ):
        run(writer.conn, write.format("open_prices"))
        if "conflict" not in write:
            with refused():
                run(writer.conn, write.format("prices"))
        with writer.admitted(BATCH) as conn:
            run(conn, write.format("prices"))
        assert rows(owner, "prices") == rows(owner, "open_prices")
    offer = f"insert into offers values ('[1,2)', '[2027-02-01,2027-03-01)', '{DAY}')"
    with refused():
        run(writer.conn, offer)
    with writer.admitted(BATCH) as conn:
        run(conn, offer)


# Constraints


@pytest.mark.parametrize(
    "constraint",
    [
        "add check (batch_date is null) not valid",
        "18 add check (batch_date is not null) not enforced",
        "18 add constraint n not null batch_date not valid",
    ],
)
def test_r23_row_without_a_resource_is_refused_whatever_constraints_say(
    owner: psycopg.Connection[Any], writer: Writer, constraint: str
) -> None:
    if constraint.startswith("18 ") and owner.info.server_version < 180000:
        pytest.skip("came with PostgreSQL 18")
    for table in ("lines", "open_lines"):
        run(owner, f"create table {table} (id integer, batch_date date)")
        run(owner, f"grant select, insert, update, delete on {table} to pgfence_app")
        run(owner, f"insert into {table} values (1, null)")
        run(owner, f"alter table {table} {constraint.removeprefix('18 ')}")
    protect(owner, "lines")
    for write in ("insert into {} values (2, null)", "update {} set id = 3", "delete from {}"):
        if "n not null" not in constraint or write.startswith("delete"):
            run(writer.conn, write.format("open_lines"))
            with refused() as error, writer.admitted(BATCH) as conn:
                run(conn, write.format("lines"))
            assert "no resource" in str(error)
    assert rows(owner, "lines") == [(1, None)]


@pytest.mark.parametrize(
    ("column", "resource"),
    [
        ("batch integer generated always as identity", "lines/1"),
        ("batch integer generated by default as identity", "lines/1"),
        ("batch bigserial", "lines/1"),
        ("batch text default 'x'", "lines/x"),
        ("batch text default session_user", "lines/worker_a"),
        ("batch text generated always as ('d' || id::text) stored", "lines/d7"),
    ],
)
def test_r23_resource_that_the_server_fills_in_is_the_one_that_counts(
    owner: psycopg.Connection[Any], writer: Writer, column: str, resource: str
) -> None:
    run(owner, f"create table lines (id integer, {column})")
    run(owner, "grant select, insert, update, delete on lines to pgfence_app")
    run(owner, "grant usage on all sequences in schema public to pgfence_app")
    protect(owner, "lines", "lines/{batch}")
    with refused() as error, writer.admitted("lines/other") as conn:
        run(conn, "insert into lines (id) values (7)")
    assert resource in str(error)
    last = resource.replace("/1", "/2")  # the number that was refused is used up
    with writer.admitted(last) as conn:
        run(conn, "insert into lines (id) values (7)")
    if "always as identity" in column:
        with refused(), writer.admitted(last) as conn:
            run(conn, "insert into lines (id, batch) overriding system value values (7, 9)")


# Moving rows


MERGES = {
    "update": "when matched and s.id = 2 then update set batch_date = '{to}'",
    "update of all": "when matched then update set batch_date = '{to}'",
    "update and delete": "when matched and s.id = 2 then update set batch_date = '{to}'"
    " when matched then delete",
    "update and insert": "when matched then update set batch_date = '{to}'"
    " when not matched then insert values (s.id, '{to}', 1)",
    "update of what has no source (17)": "when not matched by source and id = 1"
    " then update set batch_date = '{to}'",
}


@pytest.mark.parametrize("name", MERGES)
@pytest.mark.parametrize("kind", ["plain", "partitioned", "two levels", "attached later"])
def test_r23_merge_that_moves_rows_needs_both_resources(
    owner: psycopg.Connection[Any], writer: Writer, kind: str, name: str
) -> None:
    """PostgreSQL shows a row that MERGE moves to another partition to no UPDATE trigger, neither of
    statements nor of rows: what sees it are row triggers of the two partitions."""
    if owner.info.server_version < (170000 if "17" in name else 150000):
        pytest.skip("this came with PostgreSQL 15 or 17")
    fill(owner, "plain" if kind == "plain" else "partitioned")
    if kind in ("two levels", "attached later"):
        for table in ("invoices", "open_invoices"):
            for number, day in enumerate((DAY, NEXT_DAY)):
                run(owner, f"alter table {table} detach partition {table}_{number}")
                run(
                    owner,
                    f"create table {table}_m{number} (like {table} including indexes)"
                    " partition by hash (id)",
                )
                run(
                    owner,
                    f"alter table {table}_m{number} attach partition {table}_{number}"
                    " for values with (modulus 1, remainder 0)",
                )
                run(
                    owner,
                    f"alter table {table} attach partition {table}_m{number}"
                    f" for values in ('{day}')",
                )
    if kind == "two levels":
        protect(owner, "invoices")
    move = "merge into {} as i using (values (2), (3), (9)) as s(id) on i.id = s.id " + MERGES[
        name
    ].format(to=NEXT_DAY)
    run(writer.conn, move.format("open_invoices"))
    before = rows(owner)
    assert rows(owner, "open_invoices") != before
    with refused():
        run(writer.conn, move.format("invoices"))
    for resource, other in ((BATCH, NEXT_BATCH), (NEXT_BATCH, BATCH)):
        with refused() as error, writer.admitted(resource) as conn:
            run(conn, move.format("invoices"))
        assert other in str(error)
    assert rows(owner) == before
    with writer.admitted(BATCH, NEXT_BATCH) as conn:
        run(conn, move.format("invoices"))
    assert rows(owner) == rows(owner, "open_invoices")


# Two commands in one statement

#: {day}: whose rows; the number is that of a row of that day that is there, or of a new one.
COMMANDS = {
    "insert": "insert into {t} values ({new}, '{day}', 1)",
    "update": "update {t} set amount = 7 where id = {old}",
    "delete": "delete from {t} where id = {old}",
    "upsert": "insert into {t} values ({old}, '{day}', 1)"
    " on conflict (id, batch_date) do update set amount = 8",
    "merge, insert": "merge into {t} as m using (values ({new})) as s (id) on m.id = s.id"
    " when not matched then insert values (s.id, '{day}', 1)",
    "merge, update": "merge into {t} as m using (values ({old})) as s (id) on m.id = s.id"
    " when matched then update set amount = 9",
    "merge, delete": "merge into {t} as m using (values ({old})) as s (id) on m.id = s.id"
    " when matched then delete",
}


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_r23_both_commands_of_a_statement_are_seen_by_the_guard(
    owner: psycopg.Connection[Any], writer: Writer, kind: str
) -> None:
    """Both are on one table, and so may share a trigger or the table of rows that it reads."""
    fill(owner, kind, more=NEXT_DAY)
    version = owner.info.server_version
    commands = {
        name: command
        for name, command in COMMANDS.items()
        if version >= 150000 or not name.startswith("merge")
    }
    before = rows(owner)
    for first, inner in commands.items():
        if first.startswith("merge") and version < 170000:
            continue  # without RETURNING it stands in no WITH
        for second, outer in commands.items():
            for inner_day, outer_day in ((DAY, NEXT_DAY), (NEXT_DAY, DAY)):
                old = {DAY: 2, NEXT_DAY: 5}
                statement = (
                    "with x as ("
                    + inner.format(t="{t}", day=inner_day, old=old[inner_day], new=7)
                    + " returning 1) "
                    + outer.format(t="{t}", day=outer_day, old=old[outer_day], new=8)
                )
                with owner.transaction(force_rollback=True):
                    changed = run(owner, statement.format(t="open_invoices"))
                    assert changed.rowcount == 1, (first, second)
                for resource in (BATCH, NEXT_BATCH):
                    with refused() as error, writer.admitted(resource) as conn:
                        run(conn, statement.format(t="invoices"))
                    assert (NEXT_BATCH if resource == BATCH else BATCH) in str(error), statement
    assert rows(owner) == before


# Code

#: How a client has {write}, the body of a function of its own, run. Each statement by itself; the
#: last one runs it.
PLACES = {
    "an index": ("create temp table t (x integer)", "insert into t values (1)",
                 "create index on t (pg_temp.pure(x))"),
    "an exclusion constraint": ("create temp table t (x integer)", "insert into t values (1)",
                 "alter table t add exclude ((pg_temp.pure(x)) with =)"),
    "a check": ("create temp table t (x integer check (pg_temp.f(x) = 0))",
                "insert into t values (1)"),
    "a default": ("create temp table t (x integer, y integer default pg_temp.f(1))",
                  "insert into t values (1)"),
    "a default that fills a table": ("create temp table t (x integer)", "insert into t values (1)",
                  "alter table t add y integer default pg_temp.f(1)"),
    "a change of type": ("create temp table t (x integer)", "insert into t values (1)",
                  "alter table t alter x type integer using pg_temp.f(x)"),
    "a stored column": ("create temp table t (x integer,"
                        " y integer generated always as (pg_temp.pure(x)) stored)",
                        "insert into t values (1)"),
    "a domain": ("create domain pg_temp.d as integer check (pg_temp.f(value) = 0)",
                 "select 1::pg_temp.d"),
    "a policy": ("create temp table t (x integer)", "insert into t values (1)",
                 "create policy p on t using (pg_temp.f(x) = 0)",
                 "alter table t enable row level security",
                 "alter table t force row level security", "select from t"),
    "a partition key": ("create temp table t (x integer) partition by list (pg_temp.pure(x))",
                        "create temp table t1 partition of t default", "insert into t values (1)"),
    "statistics": ("create temp table t as select 1 as x from generate_series(1, 100)",
                   "create statistics pg_temp.s on (pg_temp.pure(x)), (x + 1) from t", "analyze t"),
    "an aggregate": ("create aggregate pg_temp.a(integer) (sfunc = f2, stype = integer)",
                     "select pg_temp.a(1)"),
    "an operator": ("create operator pg_temp.@@@ (function = f2, leftarg = integer,"
                    " rightarg = integer)", "select 1 operator(pg_temp.@@@) 1"),
    "a cast": ("create type pg_temp.c as (x integer)",
               "create function pg_temp.c_to(pg_temp.c) returns integer language sql"
               " as 'select pg_temp.f(1)'",
               "create cast (pg_temp.c as integer) with function pg_temp.c_to",
               "select row(1)::pg_temp.c::integer"),
    "a body of standard SQL": ("create function pg_temp.std() returns integer begin atomic"
                               " select pg_temp.f(1); end", "select pg_temp.std()"),
    "a rule of a view": ("create temp view v as select 1 as x",
                         "create rule r as on insert to v do instead select pg_temp.f(1)",
                         "insert into v values (1)"),
    "a view": ("create temp view v as select pg_temp.f(1)", "select from v"),
    "a limit": ("select 1 limit pg_temp.f(1)",),
    "a prepared statement": ("prepare p as select pg_temp.f($1)", "execute p(1)"),
    "a statement timeout": ("do $$ begin perform set_config('x.y', pg_temp.f(1)::text, true);"
                            " end $$",),
    "a lateral function": ("select from generate_series(1, 2) as i, lateral pg_temp.f(i)",),
    "a temporary table's rows": ("create temp table t as select pg_temp.f(1)",),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_r23_write_by_code_in_an_odd_place_is_refused(
    owner: psycopg.Connection[Any], writer: Writer, place: str
) -> None:
    fill(owner)
    conn = writer.conn

    def attack(table: str) -> None:
        run(conn, "begin")
        try:
            # search_path: operators and aggregates name their functions without a schema
            run(conn, "set local search_path = public, pg_temp")
            run(
                conn,
                "create function pg_temp.f(integer) returns integer language plpgsql as"
                f" $$ begin delete from public.{table} where id = 2; return 0; end $$",
            )
            run(
                conn,
                "create function pg_temp.pure(integer) returns integer language plpgsql immutable"
                " as $$ begin return pg_temp.f($1); end $$",
            )
            run(
                conn,
                "create function pg_temp.f2(integer, integer) returns integer language sql"
                " as 'select pg_temp.f($2)'",
            )
            for statement in PLACES[place]:
                run(conn, statement.replace("= f2", "= pg_temp.f2"))
            run(conn, "commit")
        except BaseException:
            run(conn, "rollback")
            raise

    attack("open_invoices")
    run(conn, "discard temp")
    run(conn, "deallocate all")
    assert len(rows(owner, "open_invoices")) == 2
    with refused():
        attack("invoices")
    assert len(rows(owner)) == 3


@pytest.mark.rule("R24")
def test_r24_procedure_that_commits_between_admission_and_write_is_refused(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    fill(owner)
    token = writer.worker.acquire(BATCH).token
    run(
        writer.conn,
        "create procedure pg_temp.p(p_token text, p_table text) language plpgsql as $$ begin"
        " perform pgfence.require(pgfence.fenced_apply(p_token, 1, 'p')); commit;"
        " execute format('update %s set amount = 0', p_table); end $$",
    )
    with refused():
        writer.conn.execute("call pg_temp.p(%s, 'invoices')", [token])
    assert {amount for _, _, amount in rows(owner)} == {10}
    assert writer.worker.apply(token, 1, "p").verdict == "REPLAYED"  # it did commit in between


#: Settings that any client may change, and since when. What else they break is refused as well.
SETTINGS = {
    "restrict_nonsystem_relation_kind = 'view'": 17,
    "restrict_nonsystem_relation_kind = 'foreign-table'": 17,
    "plan_cache_mode = force_generic_plan": 14,
    "plan_cache_mode = force_custom_plan": 14,
    "check_function_bodies = off": 14,
    "array_nulls = off": 14,
    "standard_conforming_strings = off": 14,
    "backslash_quote = on": 14,
    "quote_all_identifiers = on": 14,
    "enable_indexscan = off": 14,
    "enable_seqscan = off": 14,
    "from_collapse_limit = 1": 14,
    "constraint_exclusion = on": 14,
    "enable_partition_pruning = off": 14,
    "work_mem = '64kB'": 14,
    "client_encoding = 'SQL_ASCII'": 14,
    "TimeZone = 'Pacific/Kiritimati'": 14,
    "client_min_messages = error": 14,
    "row_security = off": 14,
    "plpgsql.extra_errors = 'all'": 14,
    "plpgsql.check_asserts = off": 14,
}


@pytest.mark.rule("R28")
@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_r28_no_setting_of_a_client_lets_a_write_through(
    database: Database, owner: psycopg.Connection[Any], writer: Writer, kind: str
) -> None:
    fill(owner, kind)
    before = rows(owner)
    for setting, since in SETTINGS.items():
        if owner.info.server_version < since * 10_000:
            continue
        with psycopg.connect(database.dsn("worker_a"), autocommit=True) as conn:
            run(conn, f"set {setting}")
            for write in (
                f"insert into {{}} values (9, '{DAY}', 1)",
                "update {} set amount = 0",
                "delete from {} where id in (2, 9)",
            ):
                run(conn, write.format("open_invoices"))
                with pytest.raises(psycopg.Error) as error:
                    run(conn, write.format("invoices"))
                # the guard reads a view of pgfence's, which this client has forbidden itself
                expected = {"PF201", "55000"} if "'view'" in setting else {"PF201"}
                assert error.value.sqlstate in expected, setting
    assert rows(owner) == before


# Logical replication


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
@pytest.mark.parametrize("root", ["true", "false"])
def test_r23_first_copy_of_a_subscription_is_refused(
    cluster: TestServer, database: Database, owner: psycopg.Connection[Any], kind: str, root: str
) -> None:
    """Which is a COPY, and not like the changes that follow."""
    source = create_database(cluster, f"{database.name}_source")
    name = database.name
    origin, subscriber = source.connect(), database.connect()
    try:
        fill(owner, kind)
        before = rows(owner)
        for table in ("invoices", "open_invoices"):
            make_table(origin, table, kind)
            run(
                origin,
                f"insert into {table} select i, '{DAY}', 1 from generate_series(10, 12) as i",
            )
        run(
            origin,
            "create publication p for table invoices, open_invoices"
            f" with (publish_via_partition_root = {root})",
        )
        run(origin, f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
        run(
            subscriber,
            f"create subscription {name} connection '{source.dsn()}' publication p"
            f" with (create_slot = false, slot_name = '{name}')",
        )
        try:
            wait_until(lambda: len(rows(owner, "open_invoices")) == 6, "an open table is filled")
            wait_until(
                lambda: "not admitted" in cluster.log().split(name, 1)[-1],
                "the copy of the protected table is refused",
            )
            assert rows(owner) == before
        finally:
            drop_subscription(subscriber, origin, name)
    finally:
        source.drop()
