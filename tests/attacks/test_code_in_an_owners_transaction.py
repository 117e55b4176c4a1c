"""Code of another workload's in a transaction of an owner's writes what the owner may write (R26).

The guard asks what the transaction was admitted for, and not whose code runs in it. So nobody else
may put code there: each way needs a right that doctor names, and is closed by the SQL that it says.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgfence.audit import doctor
from pgfence.audit.checks import CHECKS
from tests.guarded import BATCH, DAY, Writer, make_table, protect, refused, run
from tests.support import Database

pytestmark = pytest.mark.rule("R26")

_WRITES = "update public.invoices set amount = 0 where id = 2"
_FUNCTION = (
    "create function lair.f() returns trigger language plpgsql as"
    f" $$ begin {_WRITES}; return coalesce(new, old); end $$"
)
_REFERS = "foreign key (id, day) references public.invoices on delete cascade"

#: What must be granted or given for it; what the attacker does then; what the owner does.
WAYS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "a trigger of a table that refers to it": (
        ("grant references on invoices to worker_b",),
        (
            f"create table lair.trap (id integer, day date, {_REFERS})",
            f"insert into lair.trap values (1, '{DAY}')",
            _FUNCTION,
            "create trigger t before delete on lair.trap for each row execute function lair.f()",
        ),
        "delete from invoices where id = 1",
    ),
    "a cast that a foreign key needs": (
        ("grant references (id, batch_date) on invoices to pgfence_app",),
        (
            "create type lair.day as (x date)",
            "create function lair.day_of(lair.day) returns date language plpgsql as"
            f" $$ begin if session_user = 'worker_a' then {_WRITES}; return null; end if;"
            " return ($1).x; end $$",
            "create cast (lair.day as date) with function lair.day_of as implicit",
            "create table lair.trap (id integer, day lair.day,"
            " foreign key (id, day) references public.invoices)",
            f"insert into lair.trap values (1, row('{DAY}')::lair.day)",
        ),
        "delete from invoices where id = 1",
    ),
    "a function that a default calls": (
        (
            "create function lair.price() returns numeric language sql as 'select 1.0'",
            "alter function lair.price() owner to worker_b",
            "alter table invoices alter amount set default lair.price()",
        ),
        (
            "create or replace function lair.price() returns numeric language plpgsql as"
            f" $$ begin {_WRITES}; return 1; end $$",
        ),
        f"insert into invoices values (7, '{DAY}')",
    ),
    "an operator that fits better than PostgreSQL's": (
        ("grant create on schema public to worker_b",),
        (
            "create function public.plus(numeric, integer) returns numeric language plpgsql as"
            f" $$ begin {_WRITES}; return 77; end $$",
            "create operator public.+ (function = public.plus, leftarg = numeric,"
            " rightarg = integer)",
        ),
        "update invoices set amount = amount + 1 where id = 1",
    ),
}


CODES = {"REFERENCES_RIGHT", "REFERRING_TABLE", "REPLACEABLE_CODE", "SCHEMA_CREATE"}


@pytest.fixture
def attacker(database: Database, owner: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """worker_b, with a schema of its own; `invoices` has rows 1 to 3 of DAY and is protected."""
    make_table(owner, "invoices", "plain")
    run(owner, f"insert into invoices select i, '{DAY}', 10 from generate_series(1, 3) as i")
    protect(owner, "invoices")
    superuser = database.connect()
    run(superuser, "create schema lair authorization worker_b")
    run(superuser, "grant usage on schema lair to public")
    return database.connect("worker_b")


def weaknesses(database: Database) -> list[doctor.Finding]:
    found = doctor.examine(database.connect("auditor"), CHECKS).findings
    return [finding for finding in found if finding.code in CODES]


def prices(owner: psycopg.Connection[Any]) -> list[Any]:
    """Of the row that the attacker wants to change."""
    return run(owner, "select amount from invoices where id = 2").fetchall()


@pytest.mark.parametrize("way", WAYS)
def test_r26_control_code_of_others_writes_in_an_owners_transaction_and_doctor_names_the_way(
    database: Database,
    owner: psycopg.Connection[Any],
    writer: Writer,
    attacker: psycopg.Connection[Any],
    way: str,
) -> None:
    rights, attack, owners_write = WAYS[way]
    assert weaknesses(database) == []
    for statement in rights:
        run(database.connect(), statement)
    for statement in attack:
        run(attacker, statement)
    assert weaknesses(database) != []
    with writer.admitted(BATCH) as conn:
        run(conn, owners_write)
    assert prices(owner) == [(0,)]


@pytest.mark.parametrize("way", WAYS)
def test_r26_what_doctor_says_closes_the_way(
    database: Database,
    owner: psycopg.Connection[Any],
    writer: Writer,
    attacker: psycopg.Connection[Any],
    way: str,
) -> None:
    rights, attack, owners_write = WAYS[way]
    superuser = database.connect()
    for statement in rights:
        run(superuser, statement)
    for finding in weaknesses(database):
        for statement in finding.sql:
            run(superuser, statement)
    assert weaknesses(database) == []
    with refused("42501"):
        for statement in attack:
            run(attacker, statement)
    with writer.admitted(BATCH) as conn:
        run(conn, owners_write)
    assert prices(owner) == [(10,)]


def test_r26_foreign_key_that_was_made_with_the_right_is_named_when_the_right_is_gone(
    database: Database,
    owner: psycopg.Connection[Any],
    writer: Writer,
    attacker: psycopg.Connection[Any],
) -> None:
    rights, attack, owners_write = WAYS["a trigger of a table that refers to it"]
    run(owner, rights[0])
    for statement in attack:
        run(attacker, statement)
    run(owner, "revoke references on invoices from worker_b")
    (finding,) = weaknesses(database)
    assert (finding.code, finding.object) == ("REFERRING_TABLE", "lair.trap")
    for statement in finding.sql:
        run(database.connect(), statement)
    with writer.admitted(BATCH) as conn:
        run(conn, owners_write)
    assert prices(owner) == [(10,)]
