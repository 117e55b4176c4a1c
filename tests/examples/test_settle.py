"""examples/settle.py: the worker of `pgfence demo` and docker-compose.yml, where days are mixed."""

from __future__ import annotations

import json

import pytest

from tests.examples.conftest import BATCH, BATCH_DATE, receipts, started
from tests.support import PATIENCE, Database

SETTLE = ["python3", "settle.py", BATCH_DATE]


@pytest.mark.parametrize("arguments", [(), ("--unfenced",)], ids=["fenced", "unfenced"])
def test_a_worker_reads_and_charges_the_invoices_of_its_own_day_only(
    invoices: Database, tools: dict[str, str], arguments: tuple[str, ...]
) -> None:
    """The other day's have the lower IDs, and one page of them is charged already."""
    owner = invoices.connect("billing_owner")
    owner.execute("select pgfence.unprotect('invoices')")
    owner.execute(
        "insert into invoices select -i, %s::date - 1, 'customer', 100,"
        " case when i <= 200 then 7 end from generate_series(1, 300) as i",
        [BATCH_DATE],
    )
    if not arguments:
        owner.execute("select pgfence.protect('invoices', 'invoice-batch/{batch_date}')")
    env = tools | {"PGFENCE_DSN": invoices.dsn("worker_a")}
    with started([*SETTLE, *arguments], env) as worker:
        out, _ = worker.communicate(timeout=PATIENCE)
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events] == ["held", *["written"] * 3, "finished"]
    assert (events[0]["pages"], events[0]["pages_done"]) == (3, 0)
    charged = owner.execute(
        "select batch_date::text, charged_cents, count(*) from invoices group by 1, 2 order by 1, 2"
    )
    day_before = "2026-07-18"
    assert charged.fetchall() == [
        (day_before, 7, 200), (day_before, None, 100), (BATCH_DATE, 99, 500),
    ]  # fmt: skip
    expected = [] if arguments else [(BATCH, 1, segment) for segment in (1, 2, 3)]
    assert receipts(invoices) == expected
