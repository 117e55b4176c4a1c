"""A partition that its owner detaches, attaches again, or protects alone meanwhile (R25).

The guard holds for every row of the protected table, and admission goes on, or what stands in the
way says what to do.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.guarded import (
    BATCH,
    DAY,
    NEXT_BATCH,
    NEXT_DAY,
    TEMPLATE,
    Writer,
    make_table,
    protect,
    refused,
    run,
)
from tests.support import Database, wait_until_blocked
from tests.workers import in_background

pytestmark = pytest.mark.rule("R23", "R25")

#: Partitions of DAY: one that was there when `protect` was called, and one that was attached later.
KINDS = ["there at protect", "attached later"]
HOW = ["", " concurrently"]


def make(owner: psycopg.Connection[Any], kind: str) -> None:
    """`invoices` with partition `leaf` of DAY and another one, and the same, not protected, as
    `open_invoices` with `open_leaf`."""
    for table, leaf in (("invoices", "leaf"), ("open_invoices", "open_leaf")):
        make_table(owner, table, "partitioned")
        run(owner, f"alter table {table}_0 rename to {leaf}")
        if kind == "attached later":
            run(owner, f"alter table {table} detach partition {leaf}")
    protect(owner, "invoices")
    if kind == "attached later":
        attach(owner)
        attach(owner, "open_")


def attach(owner: psycopg.Connection[Any], prefix: str = "") -> None:
    run(
        owner,
        f"alter table {prefix}invoices attach partition {prefix}leaf for values in ('{DAY}')",
    )


def detach(owner: psycopg.Connection[Any], how: str = "", prefix: str = "") -> None:
    run(owner, f"alter table {prefix}invoices detach partition {prefix}leaf{how}")


def insert(table: str, number: int) -> str:
    return f"insert into {table} values ({number}, '{DAY}', 1)"


def numbers(owner: psycopg.Connection[Any], table: str = "invoices") -> list[int]:
    return [number for (number,) in run(owner, f"select id from {table} order by id")]


def assert_guarded(owner: psycopg.Connection[Any], writer: Writer) -> None:
    """Whatever changes row 1, in `invoices` or in `leaf`, is refused without admission, and goes on
    with it; beside it the same on open tables, where it succeeds."""
    first = numbers(owner)
    for table in ("invoices", "leaf"):
        for write in (
            insert(table, 99),
            f"update {table} set amount = amount + 1 where id = 1",
            f"delete from {table} where id = 1",
            f"with d as (delete from {table} where id = 1 returning *)"
            " insert into invoices select id + 50, batch_date, amount from d",
        ):
            assert run(owner, f"select from {table} where id = 1").rowcount == 1
            with refused() as error:
                run(writer.conn, write)
            assert BATCH in str(error)
            with refused(), writer.admitted(NEXT_BATCH) as conn:
                run(conn, write)
            with writer.worker.transaction():
                writer.admit(BATCH)
                run(writer.conn, "savepoint s")
                assert run(writer.conn, write).rowcount == 1
                run(writer.conn, "rollback to s")
    assert numbers(owner) == first


def admit(writer: Writer, *resources: str) -> None:
    with writer.admitted(*resources):
        pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOW)
def test_r25_partition_that_was_detached_and_attached_again_is_guarded(
    owner: psycopg.Connection[Any], writer: Writer, kind: str, how: str
) -> None:
    make(owner, kind)
    with writer.admitted(BATCH) as conn:
        run(conn, insert("invoices", 1))
    for _ in range(2):
        detach(owner, how)
        admit(writer, BATCH, NEXT_BATCH)  # nothing stands in the way meanwhile
        with refused():
            run(writer.conn, f"insert into invoices values (9, '{NEXT_DAY}', 1)")
        attach(owner)
        assert_guarded(owner, writer)
    protect(owner, "invoices")
    assert_guarded(owner, writer)
    # the control: without protect nothing refuses
    run(writer.conn, insert("open_invoices", 1))
    detach(owner, how, "open_")
    run(writer.conn, insert("open_leaf", 2))
    attach(owner, "open_")
    run(writer.conn, insert("open_invoices", 3))
    assert numbers(owner, "open_invoices") == [1, 2, 3]


@pytest.mark.parametrize("how", HOW)
def test_r23_detached_partition_that_protect_has_seen_keeps_its_guard(
    owner: psycopg.Connection[Any], writer: Writer, how: str
) -> None:
    make(owner, "there at protect")
    detach(owner, how)
    run(owner, "grant truncate on leaf to pgfence_app")
    for write in (insert("leaf", 1), "truncate leaf"):
        with refused():
            run(writer.conn, write)
    with writer.admitted(BATCH) as conn:
        run(conn, insert("leaf", 1))
    attach(owner)
    assert numbers(owner) == [1]
    assert_guarded(owner, writer)


@pytest.mark.parametrize("how", HOW)
def test_r25_partition_that_protect_never_saw_is_open_while_detached_and_guarded_again_after(
    owner: psycopg.Connection[Any], writer: Writer, how: str
) -> None:
    """Its row trigger is a clone, which PostgreSQL takes away: docs/limits.md says so."""
    make(owner, "attached later")
    detach(owner, how)
    run(writer.conn, insert("leaf", 1))
    attach(owner)
    assert numbers(owner) == [1]
    assert_guarded(owner, writer)
    # what closes it: protect before it is detached, or protect it alone
    protect(owner, "invoices")
    detach(owner, how)
    with refused():
        run(writer.conn, insert("leaf", 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", [TEMPLATE, "archive/{batch_date}"])
def test_r25_detached_partition_that_is_protected_alone_is_a_table_like_any_other(
    owner: psycopg.Connection[Any], writer: Writer, kind: str, named: str
) -> None:
    make(owner, kind)
    with writer.admitted(BATCH) as conn:
        run(conn, insert("invoices", 1))
    detach(owner)
    protect(owner, "leaf", named)
    resource = named.format(batch_date=DAY)
    for write in (insert("leaf", 2), "delete from leaf", "update leaf set amount = 0"):
        with refused() as error:
            run(writer.conn, write)
        assert resource in str(error)
    with writer.admitted(resource) as conn:
        run(conn, insert("leaf", 2))
    if resource != BATCH:
        with refused(), writer.admitted(BATCH) as conn:
            run(conn, insert("leaf", 3))
    assert numbers(owner, "leaf") == [1, 2]
    admit(writer, BATCH, NEXT_BATCH)

    # it does not go back as it is: one row would belong to two guards
    with pytest.raises(psycopg.errors.DuplicateObject, match="pgfence_guard_row"):
        attach(owner)
    run(owner, "select pgfence.unprotect('leaf')")
    attach(owner)
    assert_guarded(owner, writer)
    protect(owner, "invoices")
    assert_guarded(owner, writer)


def test_r25_partition_that_was_protected_alone_first_says_what_to_do(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    make_table(owner, "invoices", "partitioned")
    run(owner, "alter table invoices_0 rename to leaf")
    detach(owner)
    protect(owner, "leaf", "archive/{batch_date}")
    attach(owner)  # before invoices is protected nothing is in its way
    with refused("PF304") as error:
        protect(owner, "invoices")
    hint = str(error.diag.message_hint)
    assert "select pgfence.unprotect('public.leaf');" in hint
    with refused("PF202"):
        admit(writer, f"archive/{DAY}")
    run(owner, hint[hint.index("select") :])
    protect(owner, "invoices")
    with writer.admitted(BATCH) as conn:
        run(conn, insert("invoices", 1))
    assert_guarded(owner, writer)
    admit(writer, f"archive/{DAY}")


@pytest.mark.parametrize("kind", KINDS)
def test_r25_partition_whose_detaching_was_cut_short_is_guarded_and_stops_nobody(
    database: Database, owner: psycopg.Connection[Any], writer: Writer, kind: str
) -> None:
    """DETACH CONCURRENTLY that is cancelled leaves it half attached until FINALIZE."""
    make(owner, kind)
    with writer.admitted(BATCH) as conn:
        run(conn, insert("invoices", 1))
    reader, other = database.connect("worker_a"), database.connect("billing_owner")
    run(reader, "begin")
    run(reader, "select from invoices")
    pid = other.info.backend_pid
    waiting = in_background(lambda: detach(other, " concurrently"))
    wait_until_blocked(owner, pid)
    run(owner, f"select pg_cancel_backend({pid})")
    with pytest.raises(psycopg.errors.QueryCanceled):
        waiting.result()
    run(reader, "commit")
    half = "select from pg_inherits where inhrelid = 'leaf'::regclass and inhdetachpending"
    assert run(owner, half).rowcount == 1

    for write in (insert("leaf", 9), "update leaf set amount = 0", "delete from leaf"):
        with refused():
            run(writer.conn, write)
    with writer.admitted(BATCH, NEXT_BATCH) as conn:
        run(conn, insert("leaf", 2))
        run(conn, f"insert into invoices values (3, '{NEXT_DAY}', 1)")
    if kind == "attached later":
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as error:
            protect(owner, "invoices")
        assert "FINALIZE" in str(error.value.diag.message_hint)
    detach(owner, " finalize")
    attach(owner)
    assert numbers(owner) == [1, 2, 3]
    assert_guarded(owner, writer)


def test_r25_partition_that_moves_to_another_place_in_the_tree_is_guarded_there(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    """Below a partitioned one that came later, and whose statements fire no guard of its own."""
    make(owner, "there at protect")
    with writer.admitted(BATCH) as conn:
        run(conn, insert("invoices", 1))
    detach(owner)
    columns = "(id integer not null, batch_date date not null, amount numeric not null)"
    run(owner, f"create table middle {columns} partition by hash (id)")
    run(owner, "alter table middle add primary key (id, batch_date)")
    run(owner, "grant select, insert, update, delete on middle to pgfence_app")
    run(owner, "alter table middle attach partition leaf for values with (modulus 1, remainder 0)")
    with refused():  # not below invoices yet, and guarded all the same when written by its own name
        run(writer.conn, insert("leaf", 2))
    run(owner, f"alter table invoices attach partition middle for values in ('{DAY}')")
    for _ in range(2):
        for write in (insert("middle", 2), "update middle set amount = 0", "delete from middle"):
            with refused():
                run(writer.conn, write)
        assert_guarded(owner, writer)
        protect(owner, "invoices")


def test_r26_unprotecting_the_table_takes_the_guard_off_its_detached_partitions_too(
    owner: psycopg.Connection[Any], writer: Writer
) -> None:
    make(owner, "there at protect")
    detach(owner)
    with refused():
        run(writer.conn, insert("leaf", 1))
    run(owner, "select pgfence.unprotect('invoices')")
    run(writer.conn, insert("leaf", 1))
