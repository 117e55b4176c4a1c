"""Ways to write a protected table without the fence. Each is tried on an open table too, where it
must succeed, and once more with the resource admitted: the guard refuses the attack and only it."""

from __future__ import annotations

from dataclasses import dataclass
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
    make_table,
    protect,
    refused,
    run,
)
from tests.support import Database, Keys

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


def billing(database: Database, keys: Keys, kind: str) -> Billing:
    owner = database.connect("billing_owner")
    day, batch, leaf = (
        (LATER_DAY, LATER_BATCH, "_later") if kind == "attached later" else (DAY, BATCH, "_0")
    )
    for table in ("invoices", "open_invoices"):
        make_table(owner, table, kind)
    protect(owner, "invoices")
    if kind == "attached later":
        for table in ("invoices", "open_invoices"):
            attach_later(owner, table)
    made = Billing(
        database,
        owner,
        Writer.login(database, keys),
        database.connect("worker_a"),
        day,
        batch,
        "" if kind == "plain" else leaf,
    )
    insert = f"insert into {{}} select i, '{day}', 10 from generate_series(1, 3) as i"
    run(made.attacker, insert.format("open_invoices"))
    with made.writer.admitted(batch) as conn:
        run(conn, insert.format("invoices"))
    return made


@pytest.fixture(params=["plain", "partitioned", "attached later"])
def tables(request: pytest.FixtureRequest, database: Database, keys: Keys) -> Billing:
    return billing(database, keys, request.param)


@pytest.fixture
def plain(database: Database, keys: Keys) -> Billing:
    return billing(database, keys, "plain")


# {t}: the table, {leaf}: the partition of the day (or the table), {day}
STATEMENTS = {
    "insert": "insert into {t} values (9, '{day}', 1)",
    "insert select": "insert into {t} select id + 10, batch_date, amount from {t}",
    "update": "update {t} set amount = 0 where id = 2",
    "update from": "update {t} as i set amount = s.n from (values (2, 5)) as s(id, n) where i.id = s.id",
    "delete": "delete from {t} where id = 2",
    "on conflict do update": "insert into {t} values (2, '{day}', 1)"
    " on conflict (id, batch_date) do update set amount = excluded.amount",
    "on conflict, insert after all": "insert into {t} values (9, '{day}', 1)"
    " on conflict (id, batch_date) do update set amount = excluded.amount",
    "writable CTE": "with d as (delete from {t} where id = 2 returning *) select count(*) from d",
    "CTE that writes twice": "with d as (delete from {t} where id = 2 returning *),"
    " i as (insert into {t} select id + 7, batch_date, amount from d returning *) select count(*) from i",
    "merge, update": "merge into {t} as i using (values (2)) as s(id) on i.id = s.id"
    " when matched then update set amount = 0",
    "merge, insert": "merge into {t} as i using (values (9)) as s(id) on i.id = s.id"
    " when not matched then insert values (s.id, '{day}', 1)",
    "merge, delete": "merge into {t} as i using (values (2)) as s(id) on i.id = s.id"
    " when matched then delete",
    "do block": "do $$ begin update {t} set amount = 0 where id = 2; end $$",
    "dynamic SQL": "do $$ begin execute 'delete from {t} where id = 2'; end $$",
    "update into the partition": "update {leaf} set amount = 0 where id = 2",
    "insert into the partition": "insert into {leaf} values (9, '{day}', 1)",
    "delete from the partition": "delete from {leaf} where id = 2",
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS.keys())
def test_r23_statement_without_admission_is_refused(tables: Billing, statement: str) -> None:
    if statement.startswith("merge") and tables.attacker.info.server_version < 150000:
        pytest.skip("MERGE came with PostgreSQL 15")

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
