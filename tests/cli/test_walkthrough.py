"""docs/walkthrough.md is true: psql says, line by line, what it says there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.cli.documents import ROOT, Block, blocks, normalised, sessions
from tests.registry import registry
from tests.support import Database, Keys, wait_until
from tests.workers import as_owner

PAGE = ROOT / "docs" / "walkthrough.md"
A_MINUTE = "<!-- a minute passes -->"


def steps() -> Iterator[tuple[str, Block, Block]]:
    """Who speaks, what, and what the answer is."""
    found = blocks(PAGE)
    for said, answer in pairwise(found):
        if said.language == "sql":
            assert answer.language == "text", f"line {said.line} has no answer"
            yield said.text.splitlines()[0].removeprefix("-- "), said, answer


@pytest.mark.rule("R5", "R10", "R12", "R14", "R16", "R23", "R34", "R35")
def test_the_walk_through_shows_what_psql_shows(database: Database, keys: Keys) -> None:
    superuser = database.connect()
    shown, said = [], []

    def all_signed() -> bool:
        query = "select count(*) from pgfence_registry.grants where token is null"
        return superuser.execute(query).fetchone() == (0,)

    superuser.execute("grant create on schema public to billing_owner")
    sleeps_at = PAGE.read_text(encoding="utf-8").partition(A_MINUTE)[0].count("\n")
    with registry(database, keys), sessions(database) as psql:
        for role, block, answer in steps():
            wait_until(all_signed, "every grant is signed")
            if sleeps_at and block.line > sleeps_at:
                sleeps_at = 0
                as_owner(
                    database,
                    "update pgfence_registry.grants set lease_ends_at = clock_timestamp()",
                )
            shown.append(f"line {block.line}\n{answer.text}")
            said.append(f"line {block.line}\n{psql[role].run(block.text)}")
    assert normalised("\n".join(said)) == normalised("\n".join(shown))
