"""What no code in PostgreSQL can stop: it works, is noticed, and the README names it (R30)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.guarded import BATCH, DAY, make_table, protect, refused, run
from tests.support import Database, Keys
from tests.workers import Worker

README = Path(__file__).parents[2] / "README.md"

pytestmark = pytest.mark.rule("R30")


@pytest.mark.parametrize("role", [None, "billing_owner"], ids=["superuser", "owner of the table"])
def test_r30_who_may_disable_the_guard_writes_unguarded_and_stops_the_next_admission(
    database: Database, keys: Keys, role: str | None
) -> None:
    make_table(database.connect("billing_owner"), "invoices", "plain")
    protect(database.connect("billing_owner"), "invoices")
    worker = Worker.login(database, keys, "worker_a")
    held = worker.acquire(BATCH)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    out_of_reach = database.connect(role)
    write = f"insert into invoices values (1, '{DAY}', 1)"
    with refused():  # control: the guard asks no role who it is
        run(out_of_reach, write)
    run(out_of_reach, "alter table invoices disable trigger user")
    run(out_of_reach, write)
    with refused("PF202"):
        worker.apply(held.token, 2)


def test_r30_the_readme_names_what_cannot_be_stopped() -> None:
    text = README.read_text(encoding="utf-8")
    found = re.search(r"^## What is not$(.*?)^## ", text, re.M | re.S)
    assert found
    said = " ".join(found[1].split())
    for who in ("superuser", "owner of a table", "operating system"):
        assert f"**{who}**" in said, f"the README does not say that nothing stops the {who}"
    assert "No code in PostgreSQL can stop" in said
