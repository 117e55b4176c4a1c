"""docs/segments.md is true: its Python runs, in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import pgfence
from tests.cli.documents import ROOT, blocks
from tests.registry import registry
from tests.support import Database, Keys

PLACE = "postgresql://worker_a@db/billing"


def test_the_python_of_the_page_runs_as_it_stands_there(
    database: Database, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = database.connect("billing_owner")
    owner.execute("create table invoices (id int primary key, batch date, cents int)")
    for batch in range(19, 22):
        owner.execute(
            "insert into invoices select %s * 100 + i, make_date(2026, 7, %s)"
            " from generate_series(0, 29) as i",
            [batch, batch],
        )
    owner.execute("grant select, update on invoices to worker_a")
    owner.execute("select pgfence.protect('invoices', 'invoice-batch/{batch}')")
    day = 19

    def invoices_of(page: int) -> list[int]:
        return [day * 100 + 10 * (page - 1) + i for i in range(10)]

    async def charges_of(page: int) -> Any:
        return names["charges"](page)

    async def write_async(tx: Any, charges: Any) -> None:
        async with tx.cursor() as cursor:
            await cursor.executemany("update invoices set cents = %s where id = %s", charges)

    names: dict[str, Any] = {
        "pages": [1, 2, 3],
        "more_pages": [],
        "amount": lambda invoice: invoice % 7,
        "invoices_of": invoices_of,
        "charges_of": charges_of,
        "write_async": write_async,
    }
    first, async_, many, lost, acknowledged = (
        block.text for block in blocks(ROOT / "docs" / "segments.md") if block.language == "python"
    )

    def run(text: str) -> None:
        assert PLACE in text
        exec(text.replace(PLACE, database.dsn("worker_a")), names)

    with registry(database, keys):
        run(first)
        day = 20
        run(async_)
        asyncio.run(names["settle"]())
        run(many)
        day = 21
        run(lost)
        assert not names["stop"].is_set()
        with (
            pgfence.connect(database.dsn("worker_a")) as fence,
            fence.hold("invoice-batch/2026-07-19", operation="settle") as lease,
        ):
            kept = lease.apply("one more", lambda tx: None)
        names["kept"] = [replace(kept, segment_seq=2, digest="cd" * 32)]
        run(acknowledged)
    assert f"lost: 2 {kept.fence_token} {'cd' * 32}" in capsys.readouterr().out
    row = owner.execute("select count(*) from invoices where cents = id % 7").fetchone()
    assert row == (90,)
