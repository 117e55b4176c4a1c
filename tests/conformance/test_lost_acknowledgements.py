"""The connection cut at every byte of COMMIT, and of the answer to it (R44, R45).

PGFENCE_LOST_ACKNOWLEDGEMENTS says how often for each driver and route; by default once a byte.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pgfence import errors
from pgfence.model.receipt import Receipt
from tests.conformance.conftest import RESOURCE, Connect, count
from tests.conformance.drivers import Driver, Execute, Fence, Lease
from tests.conformance.test_apply import never
from tests.proxy import COMMIT_BYTES, REPLY_BYTES, Direction, Proxy, proxy_to
from tests.support import Database

CUTS: list[tuple[Direction, int]] = [
    *(("requests", at) for at in range(COMMIT_BYTES + 1)),
    *(("replies", at) for at in range(REPLY_BYTES + 1)),
]
RUNS = int(os.environ.get("PGFENCE_LOST_ACKNOWLEDGEMENTS", str(len(CUTS))))
PAGE = (
    "insert into pages values ('2026-07-19', $1, 1)"
    " on conflict (page) do update set times = pages.times + 1"
)


@pytest.fixture
def pages(served: Database) -> Database:
    """A guarded table that counts how often each page was applied."""
    owner = served.connect("billing_owner")
    owner.execute("create table pages (batch date not null, page int primary key, times int)")
    owner.execute("grant select, insert, update on pages to worker_a")
    owner.execute("select pgfence.protect('pages', 'invoice-batch/{batch}')")
    return served


class Cutter:
    """Applies one page after the other, each under a cut."""

    def __init__(self, database: Database, proxy: Proxy, fence: Fence, lease: Lease) -> None:
        self._truth = database.connect()
        self._proxy = proxy
        self._fence = fence
        self._lease = lease
        self.counts: Counter[str] = Counter()

    def apply(self, page: int, direction: Direction, at: int) -> Receipt:
        ran: list[int] = []

        def work(execute: Execute) -> None:
            execute(PAGE, page)
            ran.append(page)
            self._proxy.cut_commit(direction, at)

        try:
            receipt = self._lease.apply({"page": page}, work)
        except errors.MutationUnknownError as unknown:
            self.counts["unknown"] += 1
            assert ran == [page], "it was retried blindly"
            return self._find_out(page, unknown)
        self.counts["acknowledged"] += 1
        assert ran == [page], "it was retried blindly"
        return receipt

    def _find_out(self, page: int, unknown: errors.MutationUnknownError) -> Receipt:
        outcome = self._fence.reconcile(unknown)
        stands = self._truth.execute(
            "select encode(digest, 'hex') from pgfence.receipts where segment_seq = %s", [page]
        ).fetchone()
        if outcome.receipt:
            self.counts["accepted"] += 1
            assert stands == (outcome.receipt.digest,)
            assert self._lease.apply({"page": page}, never) == outcome.receipt
            return outcome.receipt
        self.counts["not applied"] += 1
        assert (stands, outcome.reason) == (None, "LEASE_HELD")
        receipt = self._lease.apply({"page": page}, lambda execute: execute(PAGE, page))
        assert self._fence.reconcile(unknown).receipt == receipt
        return receipt


@pytest.mark.timeout(60 + 2 * RUNS)
@pytest.mark.rule("R44", "R45")
def test_r44_r45_each_segment_is_applied_once_wherever_the_connection_is_cut(
    driver: Driver, route: str, pages: Database, connect: Connect,
    record_property: Callable[[str, Any], None],
) -> None:  # fmt: skip
    cuts = itertools.islice(itertools.cycle(CUTS), RUNS)
    with proxy_to(pages.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=600) as lease:
            cutter = Cutter(pages, proxy, fence, lease)
            receipts = [cutter.apply(n, *cut) for n, cut in enumerate(cuts, start=1)]
    columns = ("acknowledged", "unknown", "accepted", "not applied")
    record_property(
        "counts",
        {"table": "lost acknowledgements", "by": f"{driver.name}, {route}", "runs": RUNS}
        | {column: cutter.counts[column] for column in columns},
    )
    assert min(cutter.counts[column] for column in columns) > 0

    with psycopg.connect(pages.dsn("auditor")) as conn:
        chain = conn.execute(
            "select encode(digest, 'hex') from pgfence.receipts order by segment_seq"
        ).fetchall()
        verified = conn.execute("select ok from pgfence.verify_receipts(%s)", [RESOURCE]).fetchone()
    assert [digest for (digest,) in chain] == [receipt.digest for receipt in receipts]
    assert verified == (True,)
    assert count(pages, "select count(*) from pages where times = 1") == RUNS
    assert count(pages, "select count(*) from pages") == RUNS
    assert count(pages, "select count(*) from pgfence.unknown_mutations") == 0
