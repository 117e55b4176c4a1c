"""protect(): what it refuses, who may call it, and calling it again."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import Any

import psycopg
import pytest

from pgfence import embedded
from tests.guarded import (
    BATCH,
    DAY,
    LATER_BATCH,
    LATER_DAY,
    TEMPLATE,
    Writer,
    attach_later,
    make_table,
    protect,
    refused,
    run,
)
from tests.support import (
    PATIENCE,
    Database,
    Keys,
    TestServer,
    create_database,
    wait_until_blocked,
)
from tests.workers import in_background

pytestmark = pytest.mark.rule("R23", "R25")

INVOICE_COLUMNS = "(id integer not null, batch_date date not null, amount numeric not null)"
COLUMNS = "(id integer, batch_date date, batch text, n integer, x numeric)"


def guards(owner: psycopg.Connection[Any], table: str = "invoices") -> dict[str, tuple[Any, ...]]:
    return {
        row[0]: row[1:]
        for row in owner.execute(
            "select relation::text, statement_guards, truncate_guard, row_guard,"
            " unprotectable, missing from pgfence.guards where protected_table = %s::regclass",
            [table],
        )
    }


UNPROTECTABLE = {
    "view": "create view t as select * from base",
    "materialized view": "create materialized view t as select * from base",
    "sequence": "create sequence t",
    "temporary table": f"create temp table t {COLUMNS}",
    "unlogged table": f"create unlogged table t {COLUMNS}",
    "parent of a table": f"create table t {COLUMNS}; create table u () inherits (t)",
    "child of a table": "create table t () inherits (base)",
    "partition": f"create table p {COLUMNS} partition by list (n);"
    " create table t partition of p for values in (1)",
    "partitioned table below another": f"create table p {COLUMNS} partition by list (n);"
    " create table t partition of p for values in (1) partition by list (n)",
    "table with a rule": f"create table t {COLUMNS};"
    " create rule r as on insert to t do instead insert into base values (new.*)",
    "table with an ALSO rule": f"create table t {COLUMNS};"
    " create rule r as on update to t do also delete from base",
    "unlogged partition": f"create table t {COLUMNS} partition by list (n);"
    " create unlogged table u partition of t for values in (1)",
    "partition with a rule": f"create table t {COLUMNS} partition by list (n);"
    " create table u partition of t for values in (1);"
    " create rule r as on delete to u do instead nothing",
}


@pytest.mark.parametrize("made", UNPROTECTABLE.values(), ids=UNPROTECTABLE.keys())
def test_r23_protect_refuses_what_a_guard_cannot_hold(
    owner: psycopg.Connection[Any], made: str
) -> None:
    run(owner, f"create table base {COLUMNS}")
    run(owner, made)
    with refused("PF304") as error:
        protect(owner, "t", "all" if "sequence" in made else "x/{batch}")
    assert error.diag.message_hint
    assert run(owner, "select from pgfence.guards").rowcount == 0
    assert run(owner, "select from pg_trigger where tgname like 'pgfence%'").rowcount == 0


@pytest.mark.parametrize("below", [False, True])
def test_r23_protect_refuses_foreign_tables(database: Database, below: bool) -> None:
    superuser = database.connect()
    superuser.execute("create foreign data wrapper w")
    superuser.execute("create server s foreign data wrapper w")
    if below:
        run(superuser, f"create table t {COLUMNS} partition by list (n)")
        run(superuser, "create foreign table f partition of t for values in (1) server s")
    else:
        run(superuser, f"create foreign table t {COLUMNS} server s")
    with refused("PF304"):
        protect(superuser, "t", "x/{batch}")


@pytest.mark.parametrize(
    "table",
    [
        "pg_catalog.pg_class",
        "information_schema.sql_features",
        "pgfence.receipts",
        "pgfence_registry.grants",
    ],
)
def test_r23_protect_refuses_tables_of_the_system_and_of_pgfence(
    database: Database, table: str
) -> None:
    with refused("PF304"):
        protect(database.connect(), table, "x")


@pytest.mark.parametrize(
    ("naming", "says"),
    [
        ("x/{missing}", "no column"),
        ("x/{BATCH}", "no column"),
        ("x/{ctid}", "no column"),
        ("x/{}", "encloses no column"),
        ("x/{batch", "encloses no column"),
        ("x/{{batch}}", "encloses no column"),
        ("x/batch}", "literal"),
        ("x/{batch}}", "literal"),
        ("x y/{batch}", "literal"),
        ('x"/{batch}', "literal"),
        ("x\\/{batch}", "literal"),
        ("é/{batch}", "literal"),
        ("x\n", "literal"),
        ("x" * 256, "literal"),
        ("{batch}{n}", "nothing between"),
        ("x/{batch}{n}", "nothing between"),
        ("x/{n}0{batch}", "runs into"),
        ("x/{x}.{batch}", "runs into"),
    ],
)
def test_r23_protect_refuses_a_template_that_names_no_resource_clearly(
    owner: psycopg.Connection[Any], naming: str, says: str
) -> None:
    run(owner, f"create table t {COLUMNS}")
    with refused("PF304") as error:
        protect(owner, "t", naming)
    assert says in str(error)
    assert error.diag.message_hint
    assert error.diag.constraint_name == "R23"


@pytest.mark.parametrize(
    "column_type",
    [
        "real",
        "double precision",
        "interval",
        "bytea",
        "time",
        "timetz",
        "money",
        "json",
        "jsonb",
        "xml",
        "inet",
        "text[]",
        "int4range",
        "oid",
        "regclass",
        "name",
        '"char"',
        "bit(4)",
        "point",
        "tsvector",
        "colour",
        "word",
        "pair",
    ],
)
def test_r23_protect_refuses_types_whose_text_a_client_or_a_user_can_change(
    owner: psycopg.Connection[Any], column_type: str
) -> None:
    run(
        owner,
        "create type colour as enum ('red');"
        " create domain word as text; create type pair as (a text)",
    )
    run(owner, f"create table t (id integer, v {column_type})")
    with refused("PF304") as error:
        protect(owner, "t", "x/{v}")
    assert '"v"' in str(error)
    assert "generated" in str(error.diag.message_hint)


def test_r23_protect_refuses_a_virtual_column_and_takes_a_stored_one(
    owner: psycopg.Connection[Any],
) -> None:
    run(owner, "create table t (a bytea, v text generated always as (encode(a, 'hex')) stored)")
    protect(owner, "t", "x/{v}")
    if owner.info.server_version < 180000:
        pytest.skip("virtual columns came with PostgreSQL 18")
    run(owner, "create table u (a integer, v integer generated always as (a + 1) virtual)")
    with refused("PF304") as error:
        protect(owner, "u", "x/{v}")
    assert "virtual" in str(error)


@pytest.mark.parametrize("arguments", ["null, 'x'", "'t', null", "'t', ''", "0::regclass, 'x'"])
def test_r23_protect_without_table_or_template_is_a_clear_error(
    owner: psycopg.Connection[Any], arguments: str
) -> None:
    run(owner, f"create table t {COLUMNS}")
    with refused("PF301"):
        run(owner, f"select pgfence.protect({arguments})")


def test_r23_only_who_may_act_as_the_owner_protects(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    run(owner, f"create table invoices {COLUMNS}")
    run(owner, "grant all on invoices to worker_a, outsider")
    for role in ("worker_a", "outsider", "auditor"):
        conn = database.connect(role)
        with refused("42501"):
            protect(conn, "invoices")
        with refused("42501"):
            run(conn, f"select pgfence.prepare_protection('invoices', '{TEMPLATE}')")
    superuser = database.connect()
    superuser.execute("begin")  # roles belong to the whole server
    superuser.execute("create role pgfence_test_dba in role billing_owner, pgfence_app")
    superuser.execute("set local session authorization pgfence_test_dba")
    protect(superuser, "invoices")
    assert guards(superuser)["invoices"] == (True, True, "replica", None, None)
    superuser.execute("rollback")
    protect(database.connect(), "invoices")
    assert guards(owner)["invoices"] == (True, True, "replica", None, None)


def test_r23_whoever_inherits_from_the_owner_or_may_become_it_protects(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    if owner.info.server_version < 160000:
        pytest.skip("PostgreSQL 16 brought INHERIT and SET for each membership")
    run(owner, f"create table invoices {COLUMNS}")
    superuser = database.connect()
    for options, allowed in (
        ("inherit true, set false", True), ("inherit false, set true", True),
        ("inherit false, set false, admin true", False),
    ):  # fmt: skip
        superuser.execute("begin")  # roles belong to the whole server
        superuser.execute("create role pgfence_test_dba in role pgfence_app")
        run(superuser, f"grant billing_owner to pgfence_test_dba with {options}")
        superuser.execute("set local session authorization pgfence_test_dba")
        prepare = f"select pgfence.prepare_protection('public.invoices', '{TEMPLATE}')"
        if allowed:
            run(superuser, prepare)
        else:
            with refused("42501"):
                run(superuser, prepare)
        superuser.execute("rollback")


def test_r23_whoever_waits_for_a_writer_to_protect_or_unprotect_holds_up_no_other_table(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    for table in ("invoices", "others"):
        make_table(owner, table, "plain")
    writer = Writer.login(database, keys)
    second, observer = database.connect("billing_owner"), database.connect()
    for function, arguments in (
        ("protect", f"'invoices', '{TEMPLATE}'"),
        ("unprotect", "'invoices'"),
    ):
        call = f"select pgfence.{function}({arguments})"
        with writer.admitted(BATCH) as conn:
            run(conn, f"insert into invoices values ({len(function)}, '{DAY}', 1)")
            waiting = in_background(partial(run, owner, call))
            wait_until_blocked(observer, owner.info.backend_pid)
            run(second, "set lock_timeout = '30s'")
            protect(second, "others")
            run(second, "select pgfence.unprotect('others')")
        waiting.result(PATIENCE)


def test_r23_protecting_again_changes_nothing(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    look = (
        "select tgrelid::regclass::text, tgname, tgenabled, pg_get_triggerdef(oid), oid"
        " from pg_trigger where tgname like 'pgfence%' order by 1, 2"
    )
    before = run(owner, look).fetchall()
    assert len(before) == 3 * 5
    protect(owner, "invoices")
    assert run(owner, look).fetchall() == before
    with refused("PF304") as error:
        protect(owner, "invoices", "other/{batch_date}")
    assert TEMPLATE in str(error)
    assert run(owner, look).fetchall() == before


def test_r23_another_template_means_taking_the_guard_off_first(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    with refused("PF304") as error:
        protect(owner, "invoices", "other/{batch_date}")
    hint = str(error.diag.message_hint)
    with owner.transaction():
        run(owner, hint[hint.index("select") :])
    with Writer.login(database, keys).admitted(f"other/{DAY}") as conn:
        run(conn, f"insert into invoices values (1, '{DAY}', 1)")
    with refused(), Writer.login(database, keys).admitted(BATCH) as conn:
        run(conn, f"insert into invoices values (2, '{DAY}', 1)")


def test_r23_protecting_again_follows_a_column_that_changed_its_type(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    run(owner, "alter table invoices alter column batch_date type text")
    writer = Writer.login(database, keys)
    with refused("PF202") as error, writer.admitted(BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{DAY}', 1)")
    assert "protect" in str(error.diag.message_hint)
    protect(owner, "invoices")
    with writer.admitted(BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{DAY}', 1)")


def test_r25_partition_attached_later_gets_all_of_the_guard_from_protect_again(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    run(
        owner,
        f"create table by_id {INVOICE_COLUMNS} partition by hash (id)",
    )
    run(owner, "create table by_id_0 partition of by_id for values with (modulus 1, remainder 0)")
    run(owner, "alter table by_id add primary key (id, batch_date)")
    run(owner, "alter table invoices attach partition by_id for values in ('2026-08-01')")
    attach_later(owner, "invoices")
    late = {name: guards(owner)[name] for name in ("by_id", "by_id_0", "invoices_later")}
    assert set(late.values()) == {(False, False, "always", None, None)}
    protect(owner, "invoices")
    whole = (True, True, "always", None, None)
    assert guards(owner) == dict.fromkeys(
        ("invoices", "by_id", "by_id_0", "invoices_0", "invoices_1", "invoices_later"), whole
    )
    run(owner, "grant insert, truncate on invoices_later, by_id, by_id_0 to pgfence_app")
    writer = Writer.login(database, keys)
    for table in ("invoices", "invoices_later"):
        with refused():
            run(writer.conn, f"insert into {table} values (1, '{LATER_DAY}', 1)")
        with refused():
            run(
                writer.conn,
                f"truncate {table}_later" if table == "invoices" else f"truncate {table}",
            )
    for table in ("by_id", "by_id_0"):
        with refused():
            run(writer.conn, f"insert into {table} values (1, '2026-08-01', 1)")
        with refused():
            run(writer.conn, f"truncate {table}")
    with writer.admitted(LATER_BATCH) as conn:
        run(conn, f"insert into invoices_later values (1, '{LATER_DAY}', 1)")


def test_r25_partition_that_comes_back_is_guarded_again(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    writer = Writer.login(database, keys)
    attack = f"insert into invoices_0 values (1, '{DAY}', 1)"
    run(owner, "alter table invoices detach partition invoices_0")
    with refused():  # what protect made on it stays
        run(writer.conn, attack)
    with writer.admitted(BATCH):
        pass
    run(owner, f"alter table invoices attach partition invoices_0 for values in ('{DAY}')")
    assert guards(owner)["invoices_0"] == (True, True, "always", None, None)
    with refused():
        run(writer.conn, attack)
    with writer.admitted(BATCH) as conn:
        run(conn, attack)


def test_r23_protect_refuses_a_partition_that_is_protected_by_itself(
    owner: psycopg.Connection[Any],
) -> None:
    make_table(owner, "invoices", "partitioned")
    run(
        owner,
        f"create table alone {INVOICE_COLUMNS}",
    )
    run(owner, "alter table alone add primary key (id, batch_date)")
    protect(owner, "alone", "alone/{batch_date}")
    run(owner, f"alter table invoices attach partition alone for values in ('{LATER_DAY}')")
    with refused("PF304") as error:
        protect(owner, "invoices")
    assert "by itself" in str(error)


def test_r25_attaching_a_partition_needs_no_rights_of_pgfence(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    """The owner of the table need not be in pgfence_app to make partitions."""
    superuser = database.connect()
    make_table(superuser, "invoices", "partitioned")
    superuser.execute("alter table invoices owner to outsider")
    superuser.execute("grant create on schema public to outsider")
    protect(superuser, "invoices")
    outsider = database.connect("outsider")
    attach_later(outsider, "invoices")
    with refused():
        run(outsider, f"insert into invoices_later values (1, '{LATER_DAY}', 1)")


@pytest.mark.parametrize("when", ["before", "after"])
def test_r25_partition_whose_columns_stand_in_another_order(
    database: Database, owner: psycopg.Connection[Any], keys: Keys, when: str
) -> None:
    make_table(owner, "invoices", "partitioned")
    run(
        owner,
        "create table turned (gone text, amount numeric not null, batch_date date not null,"
        " id integer not null, primary key (id, batch_date)); alter table turned drop column gone",
    )
    run(owner, "grant select, insert, update, delete on turned to pgfence_app")
    attach = f"alter table invoices attach partition turned for values in ('{LATER_DAY}')"
    if when == "before":
        run(owner, attach)
    protect(owner, "invoices")
    if when == "after":
        run(owner, attach)
    writer = Writer.login(database, keys)
    for table in ("invoices (id, batch_date, amount)", "turned (id, batch_date, amount)"):
        with refused() as error:
            run(writer.conn, f"insert into {table} values (1, '{LATER_DAY}', 1)")
        assert LATER_BATCH in str(error)
    with writer.admitted(BATCH, LATER_BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{LATER_DAY}', 1), (1, '{DAY}', 1)")
        run(
            conn,
            f"update invoices set batch_date = '{DAY}', id = 2 where batch_date = '{LATER_DAY}'",
        )
        run(conn, f"update invoices set batch_date = '{LATER_DAY}' where id = 2")
        run(conn, "delete from turned")


def test_r25_guard_survives_dump_and_restore(
    cluster: TestServer, database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    bin_dir = embedded.wheel_bin_dir()
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    attach_later(owner, "invoices")
    with Writer.login(database, keys).admitted(BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{DAY}', 1)")
    before = guards(owner)
    dump = subprocess.run(
        [bin_dir / "pg_dump", "--dbname", database.dsn()], check=True, capture_output=True
    ).stdout
    restored = create_database(cluster, f"{database.name}_restored")
    try:
        subprocess.run(
            [bin_dir / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "--dbname", restored.dsn()],
            input=dump.replace(b"SET transaction_timeout = 0;", b""),  # pg_dump 18, older server
            check=True,
            capture_output=True,
        )
        conn = restored.connect("billing_owner")
        assert run(conn, "select id, batch_date::text from invoices").fetchall() == [(1, DAY)]
        assert guards(conn) == before
        for table in ("invoices", "invoices_0"):
            with refused():
                run(conn, f"update {table} set amount = 0")
        superuser = restored.connect()
        superuser.execute("select pgfence._attest_guards(%s)", [BATCH])
    finally:
        restored.drop()
