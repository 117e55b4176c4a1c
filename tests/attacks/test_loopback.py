"""Writes through a connection that the server opens to itself: another session, which needs an
admission of its own (R23, R24)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import conninfo, sql

from tests import support
from tests.guarded import BATCH, DAY, Writer, make_table, protect, refused, run
from tests.support import Database, Keys

pytestmark = pytest.mark.rule("R23", "R24")

WRITES = {
    "insert": f"insert into {{}} values (9, '{DAY}', 1)",
    "insert of many": f"insert into {{}} select i, '{DAY}', 1 from generate_series(10, 30) as i",
    "update that is pushed down": "update {} set amount = 0",
    "update that is not": "update {} set amount = random() where random() < 2",
    "delete": "delete from {} where id = 2",
    "truncate": "truncate {}",
}


@dataclass
class Loop:
    """`invoices` (protected) and `open_invoices`, with rows 1 to 3, and the way in from inside."""

    owner: psycopg.Connection[Any]
    writer: Writer
    #: How `worker_a` connects, for libpq inside the server.
    dsn: str

    def rows(self, table: str = "invoices") -> list[Any]:
        return run(self.owner, f"select id, amount from {table} order by 1").fetchall()

    def remotely(self, conn: psycopg.Connection[Any], statement: str) -> Any:
        """Run a statement on the connection `loop` of dblink."""
        return conn.execute("select dblink_exec('loop', %s)", [statement]).fetchone()


def loop(database: Database, keys: Keys, extension: str) -> Loop:
    superuser = database.connect()
    offered = "select from pg_available_extensions where name = %s"
    if superuser.execute(offered, [extension]).fetchone() is None:
        support.unavailable(f"this PostgreSQL comes without {extension}")
    run(superuser, f"create extension {extension}")
    owner = database.connect("billing_owner")
    for table in ("invoices", "open_invoices"):
        make_table(owner, table, "plain")
        run(owner, f"grant truncate on {table} to pgfence_app")
        run(owner, f"insert into {table} select i, '{DAY}', 10 from generate_series(1, 3) as i")
    protect(owner, "invoices")
    return Loop(owner, Writer.login(database, keys), database.dsn("worker_a"))


@pytest.fixture
def dblink(database: Database, keys: Keys) -> Loop:
    made = loop(database, keys, "dblink")
    made.writer.conn.execute("select dblink_connect('loop', %s)", [made.dsn])
    return made


@pytest.fixture(params=[1, 100], ids=["one by one", "in batches"])
def fdw(request: pytest.FixtureRequest, database: Database, keys: Keys) -> Loop:
    """Foreign tables `far_invoices` and `far_open_invoices`, which are the tables beside them."""
    made = loop(database, keys, "postgres_fdw")
    superuser = database.connect()
    parameters = conninfo.conninfo_to_dict(made.dsn)
    options = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.Literal(str(parameters[name])))
        for name in ("host", "port", "dbname")
        if name in parameters
    )
    superuser.execute(
        sql.SQL("create server loop foreign data wrapper postgres_fdw options ({})").format(options)
    )
    superuser.execute(
        sql.SQL(
            "create user mapping for worker_a server loop options (user 'worker_a', password {})"
        ).format(sql.Literal(support.ROLE_PASSWORD))
    )
    for table in ("invoices", "open_invoices"):
        run(
            superuser,
            f"create foreign table far_{table} (id integer, batch_date date, amount numeric)"
            f" server loop options (table_name '{table}', batch_size '{request.param}')",
        )
        run(superuser, f"grant all on far_{table} to worker_a")
    return made


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("outer", ["no admission", "admission of the outer session"])
def test_r24_write_through_dblink_needs_an_admission_of_its_own(
    dblink: Loop, write: str, outer: str
) -> None:
    conn = dblink.writer.conn
    dblink.remotely(conn, write.format("open_invoices"))
    assert dblink.rows("open_invoices") != [(1, 10), (2, 10), (3, 10)]
    if outer == "no admission":
        with refused():
            dblink.remotely(conn, write.format("invoices"))
    else:
        with refused(), dblink.writer.admitted(BATCH):
            dblink.remotely(conn, write.format("invoices"))
    assert dblink.rows() == [(1, 10), (2, 10), (3, 10)]


def test_r24_what_is_admitted_through_dblink_is_the_other_sessions(dblink: Loop) -> None:
    conn = dblink.writer.conn
    token = dblink.writer.worker.acquire(BATCH).token
    dblink.remotely(conn, "begin")
    admit = sql.SQL("select verdict from pgfence.fenced_apply({}, 1, 'p')").format(token)
    assert conn.execute(
        "select verdict from dblink('loop', %s) as t (verdict text)", [admit.as_string(conn)]
    ).fetchone() == ("ACCEPTED",)
    with refused():
        run(conn, "update invoices set amount = 1")
    dblink.remotely(conn, "update invoices set amount = 2")
    dblink.remotely(conn, "commit")
    with refused():
        dblink.remotely(conn, "update invoices set amount = 3")
    assert dblink.rows() == [(1, 2), (2, 2), (3, 2)]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_r24_write_through_a_foreign_table_needs_an_admission_of_its_own(
    fdw: Loop, write: str
) -> None:
    """Which nobody can have: the other session does nothing but what the foreign table needs."""
    conn = fdw.writer.conn
    run(conn, write.format("far_open_invoices"))
    assert fdw.rows("open_invoices") != [(1, 10), (2, 10), (3, 10)]
    with refused():
        run(conn, write.format("far_invoices"))
    with refused(), fdw.writer.admitted(BATCH):
        run(conn, write.format("far_invoices"))
    assert fdw.rows() == [(1, 10), (2, 10), (3, 10)]


def test_r24_copy_into_a_foreign_table_needs_an_admission_of_its_own(fdw: Loop) -> None:
    def copy(table: str) -> None:
        with fdw.writer.conn.cursor().copy(f"copy {table} from stdin") as data:
            for number in range(10, 20):
                data.write_row((number, DAY, 1))

    copy("far_open_invoices")
    with refused():
        copy("far_invoices")
    with refused(), fdw.writer.admitted(BATCH):
        copy("far_invoices")
    assert len(fdw.rows()) == 3
