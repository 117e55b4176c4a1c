"""The mark of admission is good in one transaction of one backend, whatever a restore brings."""

from __future__ import annotations

import pytest

from tests.guarded import BATCH, DAY, Writer, make_table, protect, refused, run
from tests.support import Database, Keys
from tests.workers import as_owner

WRITE = f"insert into invoices values (1, '{DAY}', 10)"


@pytest.mark.parametrize(
    "differs",
    [
        "admitted_transaction = (%(xid)s::bigint + 1)::text::xid8",
        "admitted_transaction_start = %(start)s::timestamptz - interval '1 microsecond'",
        "admitted_backend = %(pid)s + 1",
        "admitted_until = clock_timestamp()",
    ],
)
def test_r24_mark_of_another_transaction_start_or_backend_or_one_that_is_over_admits_nothing(
    database: Database, keys: Keys, differs: str
) -> None:
    owner = database.connect("billing_owner")
    make_table(owner, "invoices", "plain")
    protect(owner, "invoices")
    writer = Writer.login(database, keys)
    with writer.admitted(BATCH):
        pass
    conn = writer.conn
    conn.execute("begin")
    row = writer.worker.call(
        "select pg_current_xact_id()::text as xid, now()::text as start, pg_backend_pid() as pid"
    )
    mark = {"xid": row.xid, "start": row.start, "pid": row.pid}
    as_owner(
        database,
        "update pgfence.fences set admitted_transaction = %(xid)s::xid8,"
        " admitted_transaction_start = %(start)s, admitted_backend = %(pid)s,"
        " admitted_until = now() + interval '1 hour'",
        mark,
    )
    conn.execute("savepoint control")
    run(conn, WRITE)  # the control: with all of them alike it would be admitted
    conn.execute("rollback to control")
    as_owner(database, f"update pgfence.fences set {differs}", mark)
    with refused():
        run(conn, WRITE)
