"""Operators and functions that others put into schema public are not taken for PostgreSQL's.

R27. Before PostgreSQL 15 everybody may put them there. What stands in functions of pgfence is safe
by their search_path; here it is what commands say in a session with the usual one, as members of
pgfence_owner among others. Whatever fits better than PostgreSQL's own is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgfence import install, trust
from tests.cli.conftest import Pgfence, command_line
from tests.guarded import BATCH, DAY, Writer, make_table, protect, refused, run
from tests.support import Database

pytestmark = pytest.mark.rule("R27")

TYPES = (
    "smallint integer bigint numeric real float8 oid regclass name text varchar bool bytea xid8"
    " timestamptz interval"
)
OPERATORS = "= <> < <= > >= + - * / || ~ ~~ ^@ %"
HOSTILE = (
    " language plpgsql as"
    " $f$ begin raise exception 'as %', current_user using errcode = 'PFX01'; end $f$"
)
#: An operator for each two types for which PostgreSQL has none, but converts.
PLANT_OPERATORS = f"""
do $do$
declare
    v record;
begin
    for v in
        select o as name, l as l, r as r
          from regexp_split_to_table('{OPERATORS}', ' ') as o,
               regexp_split_to_table('{TYPES}', ' ') as l,
               regexp_split_to_table('{TYPES}', ' ') as r
         where not exists (select from pg_operator as p where p.oprname = o
                              and p.oprleft = l::regtype and p.oprright = r::regtype)
    loop
        if to_regprocedure(format('public.hostile(%s, %s)', v.l, v.r)) is null then
            execute format('create function public.hostile(%s, %s) returns boolean', v.l, v.r)
                || $h${HOSTILE}$h$;
        end if;
        execute format('create operator public.%s (function = public.hostile, leftarg = %s,'
            ' rightarg = %s)', v.name, v.l, v.r);
    end loop;
end
$do$
"""
#: PostgreSQL's functions that convert what they are given, or take anything.
FUNCTIONS = {
    "quote_ident": ("name",),
    "quote_literal": ("name",),
    "format": ("text, name", "text, name, name", "text, text", "text, text, text", "text, oid"),
    "concat_ws": ("text, text, text", "text, name, name", "text, text, text, text"),
    "concat": ("text, text", "text, name"),
    "starts_with": ("name, text", "text, name", "varchar, text"),
    "length": ("name", "varchar"),
    "lower": ("name",),
    "encode": ("bytea, name",),
    "floor": ("integer", "bigint"),
    "round": ("integer", "bigint"),
    "to_regclass": ("name",),
    "has_table_privilege": ("regclass, text", "name, regclass, text"),
}


@pytest.fixture
def hostile(database: Database) -> Database:
    """worker_b has put what it could think of into schema public; whoever calls it hears so."""
    run(database.connect(), "grant create on schema public to public")
    plant(database.connect("worker_b"))
    return database


def plant(attacker: psycopg.Connection[Any]) -> None:
    run(attacker, PLANT_OPERATORS)
    for name, signatures in FUNCTIONS.items():
        for types in signatures:
            run(attacker, f"create function public.{name}({types}) returns text {HOSTILE}")


@pytest.fixture
def pgfence(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pgfence]:
    with command_line(monkeypatch) as run_command:
        yield run_command


COMMANDS = [
    ("dba", "protected"),
    ("dba", "status", BATCH),
    ("dba", "rollout", "status"),
    ("dba", "receipts", "verify"),
    ("dba", "receipts", BATCH),
    ("dba", "refusals"),
    ("dba", "workload", "list"),
    ("dba", "policy", "list"),
    ("dba", "trust", "show"),
    ("dba", "reconcile"),
    ("dba", "rollout", "enforce", "trial/", "--yes"),
    ("billing_owner", "protect", "invoices", "invoice-batch/{batch_date}"),
    ("billing_owner", "unprotect", "invoices"),
]


def test_r27_no_command_calls_what_others_put_into_schema_public(
    hostile: Database, owner: psycopg.Connection[Any], writer: Writer, pgfence: Pgfence
) -> None:
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    administrator = hostile.connect("dba")
    for caught in (  # control: it is called by who does not take care
        "select c.relname from pgfence.guards as g join pg_class as c on c.oid = g.relation",
        "select format('%I.%I', n.nspname, n.nspname) from pg_namespace as n",
        "select 2.5 * 1000000",
    ):
        with refused("PFX01") as error:
            run(administrator, caught)
        assert "as dba" in str(error)

    # rows for all of them to read
    run(administrator, "set role pgfence_owner")
    run(administrator, "select pgfence.shadow('trial/')")
    with writer.admitted(BATCH) as conn:
        run(conn, f"insert into invoices values (1, '{DAY}', 1)")
    worker, token = writer.worker, writer.tokens[BATCH]
    assert worker.apply(token, 1, "another").verdict == "PAYLOAD_CONFLICT"
    assert worker.apply(token, 9).verdict == "SEGMENT_GAP"
    assert worker.apply(worker.acquire("trial/1").token, 9).verdict == "WOULD_REFUSE"
    assert worker.ask(BATCH).state == "WAIT"
    for role, *words in COMMANDS:
        said = pgfence(*words, on=hostile, role=role)
        assert said.exit_code == 0, (words, said)
    assert trust.now_us(hostile.connect("registry")) > 0


def test_r27_installing_calls_nothing_of_it_either(empty_database: Database) -> None:
    run(empty_database.connect(), "grant create on schema public to public")
    plant(empty_database.connect("worker_b"))
    with refused("PFX01"):
        run(empty_database.connect("dba"), "select 2.5 * 1000000")
    assert install.migrate(empty_database.dsn("dba")).before is None
    assert install.migrate(empty_database.dsn("dba")).before == install.head()
