"""Grant, root and segment are carried to another process, which does the writing.

    PGFENCE_DSN=postgresql://... python carry.py BATCH_DATE | python carry.py --write

The first process holds a batch of invoices (invoices.sql) and decides what is to be done; each
page goes out as a message. In earnest a queue lies between the two, with many writers, and messages
that come late, twice, or out of order. A writer needs no lease of its own: the grant says in whose
name it writes, and PostgreSQL whether that still counts. It must log in as the same workload, since
a grant is of no use to others; so it is no secret, and may stand in a queue.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from math import ceil
from typing import Any

import psycopg

import pgfence

PAGE = 200
LEASE_SECONDS = 10.0

Connection = psycopg.Connection[Any]
Message = dict[str, Any]


def main() -> None:
    """One of the two."""
    parser = argparse.ArgumentParser()
    parser.add_argument("batch_date", nargs="?")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    dsn = os.environ["PGFENCE_DSN"]
    with pgfence.connect(dsn) as fence, psycopg.connect(dsn, autocommit=True) as conn:
        if options.write:
            for answer in write(fence, conn, map(json.loads, sys.stdin)):
                print(json.dumps(answer), flush=True)
        else:
            hold(fence, conn, options.batch_date)


def hold(fence: pgfence.Fence, conn: Connection, batch_date: str) -> None:
    """Hold the batch, send a message for each page, and stay until the pages are written."""
    resource = f"invoice-batch/{batch_date}"
    pages = ceil(_count(conn, batch_date) / PAGE)
    with fence.hold(resource, operation="settle", ttl=LEASE_SECONDS) as lease:
        for page in range(1, pages + 1):
            message = {
                "grant": lease.token,
                "root": lease.operation_root,
                "segment": page,
                "payload": {"batch_date": batch_date, "page": page},
            }
            print(json.dumps(message), flush=True)
        while _written(fence.position(resource), lease) < pages:
            lease.check()  # raises when the lease is over: somebody else goes on then
            time.sleep(0.1)


def _written(position: pgfence.Position, lease: pgfence.Lease) -> int:
    """Segments of ours that were accepted."""
    return position.last_segment if position.operation_root == lease.operation_root else 0


def write(fence: pgfence.Fence, conn: Connection, messages: Iterable[Message]) -> Iterator[Message]:
    """Apply each message in a transaction; what became of it.

    ACCEPTED and REPLAYED: it is done, once. SEGMENT_GAP: one before it is missing, put it back into
    the queue. STALE_OWNER or NOT_HELD: throw it away, the work is another owner's now.
    """
    for message in messages:
        with conn.transaction():
            verdict = fence.apply(conn, message["grant"], message["segment"], message["payload"])
            if verdict.lets_write:
                _settle(conn, **message["payload"])
        yield {
            "segment": message["segment"],
            "root": message["root"],
            "verdict": verdict.verdict,
        }


def _settle(conn: Connection, batch_date: str, page: int) -> None:
    conn.execute(
        "update invoices as i set charged_cents = s.due_cents, charged_by = session_user"
        "  from (select invoice_id, due_cents from settlement where batch_date = %s"
        "         order by invoice_id limit %s offset %s) as s"
        " where i.invoice_id = s.invoice_id",
        [batch_date, PAGE, PAGE * (page - 1)],
    )


def _count(conn: Connection, batch_date: str) -> int:
    row = conn.execute(
        "select count(*) from invoices where batch_date = %s", [batch_date]
    ).fetchone()
    return int(row[0]) if row else 0


if __name__ == "__main__":
    main()
