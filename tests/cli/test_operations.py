"""The queries of docs/operations.md and growth.md run as the role that they say; commands exist."""

from __future__ import annotations

import re

import pytest

from tests.cli.documents import ROOT, Block, blocks
from tests.cli.test_commands import commands
from tests.support import Database

QUERIES = [
    pytest.param(block, id=f"{page}, line {block.line}")
    for page in ("operations.md", "growth.md", "observability.md")
    for block in blocks(ROOT / "docs" / page)
    if block.language == "sql"
]


@pytest.mark.parametrize("block", QUERIES)
def test_a_query_of_the_page_finds_nothing_amiss_in_a_fresh_database(
    database: Database, block: Block
) -> None:
    role = block.text.partition("\n")[0].removeprefix("-- ")
    found = database.connect(role).execute(block.text.encode())
    rows = found.fetchall() if found.description else []
    assert len(rows) == ("trust_bundles" in block.text)


def test_the_page_about_failover_names_only_commands_that_there_are() -> None:
    text = (ROOT / "docs" / "failover.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`pgfence ([a-z]+)\b", text))
    assert {"resume", "restored"} <= named <= {command.split()[0] for command in commands()}
