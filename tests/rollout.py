"""Prefixes in shadow, for tests."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from tests.support import Database


def shadow(database: Database, prefix: str) -> None:
    with psycopg.connect(database.dsn("dba"), autocommit=True) as conn:
        conn.execute("select pgfence.shadow(%s, 'a test')", [prefix])


def enforce(database: Database, prefix: str) -> None:
    with psycopg.connect(database.dsn("dba"), autocommit=True) as conn:
        conn.execute("select pgfence.enforce(%s, 'a test')", [prefix])


def evidence(database: Database) -> list[Any]:
    """What was let through, as named tuples, the oldest kind first."""
    with psycopg.connect(database.dsn("auditor"), autocommit=True) as conn:
        return (
            conn.cursor(row_factory=namedtuple_row)
            .execute("select * from pgfence.refusals where in_shadow and occurrences > 0"
                     " order by first_at")
            .fetchall()
        )  # fmt: skip
