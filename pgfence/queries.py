"""Ask a database; parameters are $1, $2, as in the functions themselves."""

from typing import Any

import psycopg
from psycopg.rows import tuple_row

Connection = psycopg.Connection[Any]


def rows(conn: Connection, query: str, *parameters: object) -> list[Any]:
    """All rows of a query, as tuples whatever else `conn` gives."""
    with psycopg.RawCursor(conn, row_factory=tuple_row) as cursor:
        return cursor.execute(query.encode(), parameters).fetchall()
