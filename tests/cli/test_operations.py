"""The queries of docs/operations.md run as the role that the page says; commands exist."""

from __future__ import annotations

import re

import pytest

from tests.cli.documents import ROOT, Block, blocks
from tests.cli.test_commands import commands
from tests.support import Database

QUERIES = [b for b in blocks(ROOT / "docs" / "operations.md") if b.language == "sql"]


@pytest.mark.parametrize("block", QUERIES, ids=lambda block: f"line {block.line}")
def test_a_query_of_the_operations_page_finds_nothing_amiss_in_a_fresh_database(
    database: Database, block: Block
) -> None:
    role = block.text.partition("\n")[0].removeprefix("-- ")
    rows = database.connect(role).execute(block.text.encode()).fetchall()
    assert len(rows) == ("trust_bundles" in block.text)


def test_the_page_about_failover_names_only_commands_that_there_are() -> None:
    text = (ROOT / "docs" / "failover.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`pgfence ([a-z]+)\b", text))
    assert {"resume", "restored"} <= named <= {command.split()[0] for command in commands()}
