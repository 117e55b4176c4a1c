"""The database's table of errors and Python's are one."""

from __future__ import annotations

from pgfence.model.verdict import CODES
from tests.support import Database


def test_the_database_and_python_have_the_same_names_sqlstates_and_meanings(
    database: Database,
) -> None:
    rows = database.connect("worker_a").execute("select * from pgfence.error_codes()").fetchall()
    ours = [(c.name, c.sqlstate, c.meaning) for c in CODES.values() if c.sqlstate]
    assert sorted(rows) == sorted(ours)
