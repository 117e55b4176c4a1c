"""docs/drivers.md: its Python is run, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import conninfo
from sqlalchemy import URL

from tests import guarded
from tests.cli.documents import ROOT, blocks
from tests.drivers.test_sqlalchemy import Invoice, counts
from tests.registry import registry
from tests.support import Database, Keys


@pytest.fixture
def served(database: Database, keys: Keys) -> Iterator[Database]:
    owner = database.connect("billing_owner")
    guarded.make_table(owner, "invoices", "plain")
    guarded.protect(owner, "invoices")
    with registry(database, keys):
        yield database


def test_the_page_says_what_works(served: Database) -> None:
    login: dict[str, Any] = conninfo.conninfo_to_dict(served.dsn("worker_a"))
    url = URL.create(
        "postgresql+psycopg",
        login["user"],
        login["password"],
        login["host"],
        int(login["port"]),
        login["dbname"],
    ).render_as_string(hide_password=False)
    names: dict[str, Any] = {"Invoice": Invoice}
    for block in blocks(ROOT / "docs/drivers.md"):
        if block.language == "python":
            source = block.text.replace("postgresql+psycopg://worker_a@db/billing", url)
            exec(compile(source, f"docs/drivers.md:{block.line}", "exec"), names)
    assert counts(served) == (2, 2)
    names["engine"].dispose()
