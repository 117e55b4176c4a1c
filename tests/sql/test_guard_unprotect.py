"""unprotect(): what it removes, what it leaves, and whom it waits for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.guarded import (
    BATCH,
    DAY,
    LATER_DAY,
    NEXT_BATCH,
    NEXT_DAY,
    TEMPLATE,
    Writer,
    attach_later,
    make_table,
    protect,
    refused,
    run,
)
from tests.support import Database, Keys, wait_until_blocked

pytestmark = pytest.mark.rule("R26")

LEFT = (
    "select (select count(*) from pg_trigger where tgname like 'pgfence%'),"
    " (select count(*) from pg_proc where proname ~ '^_guard_[0-9]+$'),"
    " (select count(*) from pgfence.protected_tables)"
)
CHANGES = (
    "select action, detail ->> 'table', detail ->> 'template', session_role from pgfence.journal"
)


def unprotect(conn: psycopg.Connection[Any], table: str) -> None:
    conn.execute("select pgfence.unprotect(%s::regclass)", [table])


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_r26_unprotect_leaves_a_table_as_open_as_before_protect(
    database: Database, owner: psycopg.Connection[Any], keys: Keys, kind: str
) -> None:
    make_table(owner, "invoices", kind)
    make_table(owner, "other", "plain")
    protect(owner, "invoices")
    protect(owner, "other")
    worker = database.connect("worker_a")
    insert = f"insert into {{}} values (1, '{DAY}', 1)"
    with refused():
        run(worker, insert.format("invoices"))
    unprotect(owner, "invoices")
    run(worker, insert.format("invoices"))
    with refused():
        run(worker, insert.format("other"))
    assert run(database.connect(), LEFT).fetchone() == (5, 1, 1)
    with Writer.login(database, keys).admitted(BATCH) as conn:  # the resource lives on
        run(conn, insert.format("other"))


def test_r26_unprotect_removes_every_trigger_of_the_guard_whatever_became_of_it(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    make_table(owner, "invoices", "partitioned")
    protect(owner, "invoices")
    attach_later(owner, "invoices")
    run(owner, "alter trigger pgfence_guard_update on invoices_0 rename to something")
    run(owner, "alter table invoices_0 disable trigger user")
    run(owner, "alter table invoices detach partition invoices_1")
    run(owner, "drop trigger pgfence_guard_truncate on invoices")
    with refused():
        run(owner, f"insert into invoices_1 values (1, '{NEXT_DAY}', 1)")
    unprotect(owner, "invoices")
    assert run(database.connect(), LEFT).fetchone() == (0, 0, 0)
    run(owner, f"insert into invoices_1 values (1, '{NEXT_DAY}', 1)")
    run(owner, f"insert into invoices values (1, '{LATER_DAY}', 1)")


def test_r26_unprotect_works_also_where_the_guard_function_is_gone(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    run(database.connect(), "drop function pgfence._guard_1() cascade")
    unprotect(owner, "invoices")
    assert run(database.connect(), LEFT).fetchone() == (0, 0, 0)


def test_r26_protecting_and_unprotecting_leave_a_line_each(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    protect(owner, "invoices")  # mends what is there: no line
    unprotect(owner, "invoices")
    protect(owner, "invoices", "other/{batch_date}")
    auditor = database.connect("auditor")
    assert run(auditor, f"{CHANGES} order by entry").fetchall() == [
        ("PROTECTED", "public.invoices", TEMPLATE, "billing_owner"),
        ("UNPROTECTED", "public.invoices", TEMPLATE, "billing_owner"),
        ("PROTECTED", "public.invoices", "other/{batch_date}", "billing_owner"),
    ]


def test_r26_unprotect_that_is_rolled_back_has_changed_nothing(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    run(owner, "begin")
    unprotect(owner, "invoices")
    run(owner, f"insert into invoices values (1, '{DAY}', 1)")
    run(owner, "rollback")
    assert run(database.connect(), LEFT).fetchone() == (5, 1, 1)
    assert run(owner, "select missing from pgfence.guards").fetchall() == [(None,)]
    assert run(database.connect("auditor"), CHANGES).rowcount == 1


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_r26_unprotect_waits_for_who_has_written_and_is_guarded_until_commit(
    database: Database, owner: psycopg.Connection[Any], keys: Keys, kind: str
) -> None:
    make_table(owner, "invoices", kind)
    protect(owner, "invoices")
    writer = Writer.login(database, keys)
    with ThreadPoolExecutor(1) as other, writer.admitted(BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{DAY}', 1)")
        done = other.submit(unprotect, owner, "invoices")
        waits_for = wait_until_blocked(database.connect(), owner.info.backend_pid)
        assert waits_for == [conn.info.backend_pid]
        with refused(), conn.transaction():
            run(conn, f"insert into invoices values (2, '{NEXT_DAY}', 1)")
    done.result()
    run(database.connect("worker_b"), f"insert into invoices values (3, '{NEXT_DAY}', 1)")


def test_r26_who_was_admitted_and_writes_later_waits_and_finds_an_open_table(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    writer = Writer.login(database, keys)
    with ThreadPoolExecutor(1) as other, writer.admitted(BATCH) as conn:
        with owner.transaction():
            unprotect(owner, "invoices")  # does not wait: nothing is written yet
            insert = f"insert into invoices values (1, '{NEXT_DAY}', 1)"
            done = other.submit(run, conn, insert)
            wait_until_blocked(database.connect(), conn.info.backend_pid)
        done.result()
        writer.admit(NEXT_BATCH)
    assert run(owner, "select count(*) from invoices").fetchone() == (1,)


def test_r26_unprotect_wants_a_table_that_is_protected(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    make_table(owner, "invoices", "plain")
    run(owner, "create view v as select 1 as one")
    for call in ("'invoices'", "'v'", "null"):
        with refused("PF301") as error:
            run(owner, f"select pgfence.unprotect({call})")
        assert error.diag.message_hint


def test_r26_record_of_a_dropped_table_is_removed_by_a_member_of_pgfence_owner(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    ((oid,),) = run(owner, "select 'invoices'::regclass::oid::text").fetchall()
    run(owner, "drop table invoices")
    with refused("42501"):
        unprotect(owner, oid)
    unprotect(database.connect("dba"), oid)
    assert run(database.connect(), LEFT).fetchone() == (0, 0, 0)
    (line,) = run(database.connect("auditor"), f"{CHANGES} where entry > 1").fetchall()
    assert line == ("UNPROTECTED", oid, TEMPLATE, "dba")
