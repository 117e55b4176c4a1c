"""A worker that settles a batch of invoices (invoices.sql), 200 at a time.

    PGFENCE_DSN=postgresql://... python settle.py BATCH_DATE [--unfenced]

It holds the batch's lease and takes up where the worker before it stopped. Each page is read,
computed and written. A page is one segment; with --unfenced it is written as one would with any
lock: look at the lease, then write. What happens is told in lines of JSON.

`pgfence demo` adds --wait-before PAGE: wait for a line on standard input when that page is computed
and not yet written, where the demo stops the process; and --insist: when the client finds that the
lease is over, try to write all the same, as a worker without such a client would.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from math import ceil
from typing import Any, LiteralString

import psycopg

import pgfence
from pgfence.errors import from_sqlstate

PAGE = 200
LEASE_SECONDS = 3.0

Connection = psycopg.Connection[Any]


def main() -> None:
    """Settle one batch, or what is left of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("batch_date")
    parser.add_argument("--unfenced", action="store_true")
    parser.add_argument("--wait-before", type=int, metavar="PAGE")
    parser.add_argument("--insist", action="store_true")
    options = parser.parse_args()
    dsn = os.environ["PGFENCE_DSN"]
    batch = ("unfenced-batch/" if options.unfenced else "invoice-batch/") + options.batch_date
    coordinator = os.environ.get("PGFENCE_COORDINATOR", "postgres")
    with (
        pgfence.connect(dsn, coordinator=coordinator) as fence,
        psycopg.connect(dsn, autocommit=True) as conn,
        fence.hold(batch, operation="settle", ttl=LEASE_SECONDS, take_up=True) as lease,
    ):
        worker = Worker(fence, lease, conn, options.batch_date, options.unfenced)
        try:
            worker.settle(options.wait_before)
        except pgfence.NotHeldError as error:
            tell("stopped", page=worker.page, says=str(error))
            if options.insist:
                worker.insist()
        else:
            tell("finished")


@dataclass
class Charges:
    """What is to be charged for the invoices of one page."""

    invoices: list[int]
    cents: list[int]

    @classmethod
    def of_page(cls, conn: Connection, batch_date: str, page: int) -> "Charges":
        """Read the page and compute: the amount of each invoice less its credit notes."""
        rows = conn.execute(
            "select invoice_id, due_cents from settlement where batch_date = %s"
            " order by invoice_id limit %s offset %s",
            (batch_date, PAGE, PAGE * (page - 1)),
        ).fetchall()
        return cls([invoice for invoice, _ in rows], [cents for _, cents in rows])

    def write(self, tx: Connection) -> None:
        """The work of a segment: the business rows, in the transaction that is open on `tx`."""
        tx.execute(
            "update invoices as i set charged_cents = c.cents, charged_by = session_user"
            " from unnest(%s::bigint[], %s::bigint[]) as c (invoice_id, cents)"
            " where i.invoice_id = c.invoice_id",
            (self.invoices, self.cents),
        )


@dataclass
class Worker:
    """One worker and its lease, at one page."""

    fence: pgfence.Fence
    lease: pgfence.Lease
    conn: Connection
    batch_date: str
    unfenced: bool
    page: int = 0

    def settle(self, wait_before: int | None) -> None:
        """Settle the open pages, in order. Raises NotHeldError when the lease is over."""
        pages = ceil(self._one("select count(*) from invoices where batch_date = %s") / PAGE)
        done = self._pages_done()
        tell("held", fence_token=self.lease.fence_token, pages=pages, pages_done=done)
        for self.page in range(done + 1, pages + 1):
            self.charges = Charges.of_page(self.conn, self.batch_date, self.page)
            self.lease.check()
            if self.page == wait_before:
                tell("computed", page=self.page)
                if not sys.stdin.readline():
                    sys.exit("nobody is there any more to say that we may go on")
            if self.unfenced:
                with self.conn.transaction():
                    self.charges.write(self.conn)
                tell("written", page=self.page)
            else:
                receipt = self.lease.apply(self._payload(), self.charges.write)
                tell("written", page=self.page, segment=receipt.segment_seq)

    def insist(self) -> None:
        """Try to write the page without the client's caution: now only PostgreSQL can refuse."""
        with self.conn.transaction():
            verdict = self.fence.apply(
                self.conn, self.lease.token, self.lease.next_segment, self._payload()
            )
        tell("insisted", how="fenced_apply", outcome=verdict.verdict, says=verdict.explanation)
        try:
            with self.conn.transaction():
                self.charges.write(self.conn)
        except psycopg.Error as error:
            message = error.diag.message_primary or str(error)
            refused = from_sqlstate(error.sqlstate, message)
            outcome = refused.code.name if refused and refused.code else error.sqlstate
            tell("insisted", how="update", outcome=outcome, says=message)
        else:
            tell("insisted", how="update", outcome="WRITTEN", says="")

    def _pages_done(self) -> int:
        """Where the worker before us stopped.

        A page is a segment, so the segments of all owners together count the pages. Without the
        fence there are only the rows.
        """
        if self.unfenced:
            charged = "select count(charged_cents) from invoices where batch_date = %s"
            return self._one(charged) // PAGE
        return self.fence.position(self.lease.resource).total_segments

    def _payload(self) -> object:
        """What the segment does, in few words; its digest goes into the receipt."""
        return {"page": self.page, "cents": sum(self.charges.cents)}

    def _one(self, of_batch: LiteralString) -> int:
        row = self.conn.execute(of_batch, (self.batch_date,)).fetchone()
        assert row is not None  # noqa: S101 - a count has one row
        return int(row[0])


def tell(event: str, **fields: object) -> None:
    """One line of JSON for whoever started us."""
    print(json.dumps({"event": event} | fields), flush=True)


if __name__ == "__main__":
    main()
