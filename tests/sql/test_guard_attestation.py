"""A guard that is not whole stops admission, and the error says what mends it (R25)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

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
from tests.support import Database, Keys
from tests.workers import Worker

pytestmark = pytest.mark.rule("R25")

TRIGGERS = tuple(
    f"pgfence_guard_{name}" for name in ("insert", "update", "delete", "truncate", "row")
)


def admit(writer: Writer, resource: str = BATCH) -> None:
    with writer.admitted(resource):
        pass


def assert_refused_until_mended(
    owner: psycopg.Connection[Any], writer: Writer, change: str = ""
) -> None:
    """The damage is done. No admission, until `change` and what the hint says have been run."""
    with refused("PF202") as error:
        admit(writer)
    assert error.diag.constraint_name == "R25"
    hint = str(error.diag.message_hint)
    assert hint.startswith("Change that, then" if change else "Run as the owner: ")
    admit(writer, "invoice-batches/other")  # another prefix: not concerned
    if change:
        run(owner, change)
    run(owner, hint[hint.index("select") :])
    admit(writer)


def assert_rows_are_guarded(writer: Writer, *relations: str, day: str = DAY) -> None:
    with writer.admitted(TEMPLATE.format(batch_date=day)) as conn:
        run(conn, f"insert into invoices values (1, '{day}', 1) on conflict do nothing")
    for relation in relations:
        for write in (
            f"insert into {relation} values (2, '{day}', 1)",
            f"update {relation} set amount = 0",
            f"delete from {relation}",
        ):
            with refused():
                run(writer.conn, write)


def damages(relation: str) -> dict[str, str]:
    """Ways in which its owner, or a restore, takes the guard off a relation."""
    made: dict[str, str] = {}
    for trigger in TRIGGERS:
        made[f"{trigger} disabled"] = f"alter table {relation} disable trigger {trigger}"
        made[f"{trigger} demoted"] = f"alter table {relation} enable trigger {trigger}"
        if trigger != "pgfence_guard_row":
            made[f"{trigger} for replicas only"] = (
                f"alter table {relation} enable replica trigger {trigger}"
            )
            made[f"{trigger} dropped"] = f"drop trigger {trigger} on {relation}"
    made["all disabled"] = f"alter table {relation} disable trigger user"
    made["all enabled, as pg_restore --disable-triggers leaves them"] = (
        f"alter table {relation} disable trigger user; alter table {relation} enable trigger user"
    )
    for event, tables in {
        "insert": "new table as pgfence_new_rows",
        "update": "old table as pgfence_old_rows new table as pgfence_new_rows",
        "delete": "old table as pgfence_old_rows",
    }.items():
        trigger = f"pgfence_guard_{event}"
        for what, condition, function in (
            ("never fires", "when (false)", "pgfence._guard_1"),
            ("calls another function", "", "suppress"),
        ):
            made[f"{trigger} {what}"] = (
                f"create or replace trigger {trigger} after {event} on {relation}"
                f" referencing {tables} for each statement {condition}"
                f" execute function {function}();"
                f" alter table only {relation} enable always trigger {trigger}"
            )
    made["pgfence_guard_update replaced by an INSERT trigger"] = (
        f"drop trigger pgfence_guard_update on {relation};"
        f" create trigger pgfence_guard_update after insert on {relation}"
        " referencing new table as pgfence_new_rows for each statement"
        " execute function pgfence._guard_1();"
        f" alter table only {relation} enable always trigger pgfence_guard_update"
    )
    return made


ROW_TRIGGER_DAMAGES = {
    "row trigger dropped": "drop trigger pgfence_guard_row on invoices",
    "row trigger for one column only": "drop trigger pgfence_guard_row on invoices;"
    " create trigger pgfence_guard_row after insert or delete or update of id on invoices"
    " for each row execute function pgfence._guard_1();"
    " alter table invoices enable always trigger pgfence_guard_row",
    "row trigger that never fires": "create or replace trigger pgfence_guard_row"
    " after insert or update or delete on invoices for each row when (false)"
    " execute function pgfence._guard_1();"
    " alter table invoices enable always trigger pgfence_guard_row",
}
SUPPRESS = "create function suppress() returns trigger language plpgsql as 'begin return null; end'"


@pytest.mark.parametrize("damage", damages("invoices").values(), ids=damages("invoices").keys())
def test_r25_damaged_guard_of_a_table_stops_admission(
    owner: psycopg.Connection[Any], writer: Writer, damage: str
) -> None:
    run(owner, SUPPRESS)
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    admit(writer)
    run(owner, damage)
    assert_refused_until_mended(owner, writer)


@pytest.mark.parametrize("damage", damages("invoices_0").values(), ids=damages("invoices_0").keys())
def test_r25_damaged_guard_of_a_partition_still_guards_its_rows_or_stops_admission(
    owner: psycopg.Connection[Any], writer: Writer, damage: str
) -> None:
    run(owner, SUPPRESS)
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    admit(writer)
    if "disable trigger user" in damage:  # PostgreSQL 14 takes a cloned trigger for internal
        damage += "; alter table invoices_0 disable trigger pgfence_guard_row"
    run(owner, damage)
    row_trigger = (
        "select from pg_trigger where tgrelid = 'invoices_0'::regclass"
        " and tgname = 'pgfence_guard_row' and tgenabled = 'A'"
    )
    if run(owner, row_trigger).rowcount == 0:
        assert_refused_until_mended(owner, writer)
        return
    # what is left is as good as a partition that was attached later
    admit(writer)
    assert_rows_are_guarded(writer, "invoices", "invoices_0")
    run(owner, "grant truncate on invoices_0 to pgfence_app")
    guarded = (
        "select from pgfence.guards where relation = 'invoices_0'::regclass and truncate_guard"
    )
    if run(owner, guarded).rowcount == 0:
        assert_refused_until_mended(owner, writer)
    admit(writer)
    with refused():
        run(writer.conn, "truncate invoices_0")


@pytest.mark.parametrize("damage", ROW_TRIGGER_DAMAGES.values(), ids=ROW_TRIGGER_DAMAGES.keys())
@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_r25_damaged_row_trigger_stops_admission(
    owner: psycopg.Connection[Any], writer: Writer, kind: str, damage: str
) -> None:
    make_table(owner, "invoices", kind)
    protect(owner, "invoices")
    admit(writer)
    run(owner, damage)
    assert_refused_until_mended(owner, writer)


def test_r25_damage_in_the_middle_of_a_partition_tree_is_held_below_or_stops_admission(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    make_table(owner, "invoices", "partitioned")
    run(
        owner,
        f"create table middle partition of invoices for values in ('{LATER_DAY}')"
        " partition by hash (id);"
        " create table low partition of middle for values with (modulus 1, remainder 0)",
    )
    protect(owner, "invoices")
    run(owner, "grant select, insert, update, delete on middle, low to pgfence_app")
    for damage in (
        "alter table only middle disable trigger pgfence_guard_update",
        "drop trigger pgfence_guard_insert on middle; drop trigger pgfence_guard_update on middle;"
        " drop trigger pgfence_guard_delete on middle",
    ):
        run(owner, damage)  # which leaves the row triggers
        admit(writer)
        assert_rows_are_guarded(writer, "middle", "low", day=LATER_DAY)
    run(owner, "alter table low disable trigger pgfence_guard_row")
    assert_refused_until_mended(owner, writer)


@pytest.mark.parametrize("name", ["batch_date", "Batch date", "a'b"])
@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_r25_column_that_names_the_resource_is_missed(
    owner: psycopg.Connection[Any], writer: Writer, kind: str, name: str
) -> None:
    column = psycopg.sql.Identifier(name).as_string(owner)
    by = " partition by list (id)" if kind == "partitioned" else ""
    run(owner, f"create table invoices (id integer, {column} date){by}")
    protect(owner, "invoices", f"invoice-batch/{{{name}}}")
    admit(writer)
    for damage, change in (
        (f"rename {column} to gone", f"rename gone to {column}"),
        (f"drop {column}", f"add {column} date"),
        (f"alter {column} type text", ""),
        (f"alter {column} type date using null", ""),
    ):
        run(owner, f"alter table invoices {damage}")
        assert_refused_until_mended(
            owner, writer, f"alter table invoices {change}" if change else ""
        )


def test_r25_row_trigger_of_a_partition_for_replicas_only_stops_admission(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    admit(writer)
    run(owner, "alter table invoices_0 enable replica trigger pgfence_guard_row")
    assert_refused_until_mended(owner, writer)


FUNCTION_DAMAGES = {
    "another body": "create or replace function pgfence._guard_1() returns trigger language plpgsql"
    " security definer set search_path = pg_catalog, pg_temp as 'begin return null; end'",
    "not definer": "alter function pgfence._guard_1() security invoker",
    "not pinned": "alter function pgfence._guard_1() reset search_path",
    "pinned elsewhere": "alter function pgfence._guard_1() set search_path = public",
}


@pytest.mark.parametrize("damage", FUNCTION_DAMAGES.values(), ids=FUNCTION_DAMAGES.keys())
@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_r25_changed_guard_function_stops_admission(
    database: Database, owner: psycopg.Connection[Any], writer: Writer, kind: str, damage: str
) -> None:
    make_table(owner, "invoices", kind)
    protect(owner, "invoices")
    admit(writer)
    run(database.connect(), damage)
    assert_refused_until_mended(owner, writer)


def test_r25_guard_function_of_another_owner_stops_admission(
    database: Database, owner: psycopg.Connection[Any], writer: Writer
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    superuser = database.connect()
    run(superuser, "grant create on schema pgfence to outsider")
    run(superuser, "alter function pgfence._guard_1() owner to outsider")
    with refused("PF202"):
        admit(writer)


STRUCTURE_DAMAGES = {
    "child table": (
        "create table child () inherits (invoices)",
        "drop table child",
    ),
    "parent table": (
        "create table parent (id integer not null); alter table invoices inherit parent",
        "alter table invoices no inherit parent",
    ),
    "attached to a partitioned table": (
        "create table p (like invoices including indexes) partition by list (batch_date);"
        f" alter table p attach partition invoices for values in ('{DAY}')",
        "alter table p detach partition invoices",
    ),
    "unlogged": ("alter table invoices set unlogged", "alter table invoices set logged"),
    "rule": (
        "create rule r as on insert to invoices do instead nothing",
        "drop rule r on invoices",
    ),
}


@pytest.mark.parametrize(
    ("damage", "change"), STRUCTURE_DAMAGES.values(), ids=STRUCTURE_DAMAGES.keys()
)
def test_r25_table_that_no_guard_holds_any_more_stops_admission(
    owner: psycopg.Connection[Any], writer: Writer, damage: str, change: str
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    admit(writer)
    run(owner, damage)
    assert_refused_until_mended(owner, writer, change)


def test_r25_partitioned_table_attached_to_another_stops_admission(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    run(owner, "create table p (like invoices including indexes) partition by range (batch_date)")
    run(
        owner,
        "alter table p attach partition invoices for values from ('2026-01-01') to ('2027-01-01')",
    )
    assert_refused_until_mended(owner, writer, "alter table p detach partition invoices")


def test_r25_writing_through_a_parent_is_the_hole_that_attestation_shows(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    """Negative control: statement triggers of a child do not fire for its parent's statements."""
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    with writer.admitted(BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{DAY}', 10)")
    run(owner, "create table parent (id integer not null); alter table invoices inherit parent")
    run(owner, "update parent set id = 2")
    assert run(owner, "select id from invoices").fetchall() == [(2,)]


def test_r25_partition_attached_later_does_not_stop_admission(
    database: Database, owner: psycopg.Connection[Any], writer: Writer
) -> None:
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    attach_later(owner, "invoices")
    with writer.admitted(LATER_BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{LATER_DAY}', 10)")
    with refused():
        run(writer.conn, "delete from invoices_later")


def test_r25_partition_attached_later_that_others_may_truncate_stops_admission(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    """No trigger of PostgreSQL's reaches TRUNCATE there before protect is called again."""
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    attach_later(owner, "invoices")
    admit(writer)
    run(owner, "grant truncate on invoices_later to pgfence_app")
    run(writer.conn, "truncate invoices_later")  # the hole
    assert_refused_until_mended(owner, writer)
    with refused():
        run(writer.conn, "truncate invoices_later")


def test_r25_partition_attached_later_with_its_row_trigger_demoted_stops_admission(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    attach_later(owner, "invoices")
    for damage in ("disable trigger", "enable trigger", "enable replica trigger"):
        run(owner, f"alter table invoices_later {damage} pgfence_guard_row")
        with refused("PF202"):
            admit(writer)
    run(owner, "alter table invoices_later enable always trigger pgfence_guard_row")
    admit(writer)


def test_r25_table_that_is_gone_stops_nothing(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    run(owner, "drop table invoices")
    admit(writer)
    assert run(owner, "select from pgfence.guards").rowcount == 0
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    admit(writer)


@pytest.mark.parametrize(
    "damage",
    [
        "alter table invoices3 disable trigger pgfence_guard_update",
        "alter table invoices4_0 disable trigger pgfence_guard_row",
        "alter function pgfence._guard_4() reset search_path",
        "drop function pgfence._guard_4() cascade",
        "alter table invoices3 set unlogged",
    ],
)
def test_r25_one_broken_guard_among_many_tables_is_named(
    database: Database, owner: psycopg.Connection[Any], writer: Writer, damage: str
) -> None:
    for number in range(5):
        make_table(owner, f"invoices{number}", "partitioned" if number == 4 else "plain")
        protect(owner, f"invoices{number}")
    admit(writer)
    run(database.connect(), damage)
    with refused("PF202") as error:
        admit(writer)
    assert f"public.invoices{4 if 'invoices4' in damage else 3}" in str(error)


def test_r25_renamed_trigger_guards_as_before(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    for number, trigger in enumerate(TRIGGERS):
        run(owner, f"alter trigger {trigger} on invoices rename to z{number}")
    admit(writer)
    protect(owner, "invoices")
    assert run(owner, "select from pg_trigger where tgname like 'pgfence%'").rowcount == 0
    for attack in (f"insert into invoices values (1, '{DAY}', 1)", "truncate invoices"):
        with refused():
            run(owner, attack)


def test_r25_replay_and_refusal_do_not_need_the_guard(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    worker = Worker.login(database, keys, "worker_a")
    token = worker.acquire(BATCH).token
    assert worker.apply(token, 1).verdict == "ACCEPTED"
    run(owner, "alter table invoices disable trigger user")
    assert worker.apply(token, 1).verdict == "REPLAYED"
    assert worker.apply(token, 7).verdict == "SEGMENT_GAP"
    with refused("PF202"):
        worker.apply(token, 2)


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
@pytest.mark.parametrize(("then", "now"), [("off", "on"), ("on", "off")])
def test_r25_a_guard_is_whole_however_a_client_quotes(
    owner: psycopg.Connection[Any], writer: Writer, kind: str, then: str, now: str
) -> None:
    make_table(owner, "invoices", kind)
    run(owner, f"set quote_all_identifiers = {then}")
    protect(owner, "invoices")
    run(writer.conn, f"set quote_all_identifiers = {now}")
    # Outside READ COMMITTED the guards are looked at each time, and not as the plan remembers them.
    for isolation in ("read committed", "repeatable read"):
        with writer.worker.transaction(isolation):
            writer.admit(BATCH)
    run(owner, "alter table invoices disable trigger pgfence_guard_truncate")
    for isolation in ("read committed", "repeatable read"):
        with refused("PF202"), writer.worker.transaction(isolation):
            writer.admit(BATCH)


def test_r25_what_an_old_snapshot_shows_of_a_guard_is_not_remembered(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    writer = Writer.login(database, keys)
    with writer.admitted(BATCH):
        pass
    run(writer.conn, "begin isolation level repeatable read")
    run(writer.conn, "select count(*) from pg_trigger")
    run(owner, "alter table invoices disable trigger pgfence_guard_insert")
    writer.worker.apply(writer.tokens[BATCH], 2)
    run(writer.conn, "rollback")
    with refused("PF202"), writer.admitted(BATCH):
        pass
