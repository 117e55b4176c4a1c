"""Which tables are protected, and whether their guards are whole (R25)."""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import psycopg
from psycopg.rows import tuple_row

Connection = psycopg.Connection[Any]

# Types are exact and functions qualified: else what others have put into schema public fits better.
_GUARDS = """
select pg_catalog.format('%I.%I', n.nspname, c.relname), g.template,
       pg_catalog.format('%I.%I', m.nspname, r.relname), coalesce(g.unprotectable, g.missing)
  from pgfence.guards as g
  join pg_catalog.pg_class as c on c.oid = g.protected_table::oid
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
  join pg_catalog.pg_class as r on r.oid = g.relation::oid
  join pg_catalog.pg_namespace as m on m.oid = r.relnamespace
 order by n.nspname, c.relname, r.oid <> c.oid, m.nspname, r.relname
"""


@dataclass(frozen=True, slots=True)
class Gap:
    """What is wrong with the guard of one relation: the table itself, or a partition of it."""

    relation: str
    problem: str


@dataclass(frozen=True, slots=True)
class ProtectedTable:
    """A protected table; its guard is whole where there are no gaps."""

    table: str
    template: str
    gaps: tuple[Gap, ...]


def protected(conn: Connection) -> list[ProtectedTable]:
    """The protected tables by name. Needs pgfence_auditor or pgfence_app."""
    rows = conn.cursor(row_factory=tuple_row).execute(_GUARDS).fetchall()
    return [
        ProtectedTable(
            table,
            template,
            tuple(Gap(relation, problem) for *_, relation, problem in group if problem),
        )
        for (table, template), group in groupby(rows, key=lambda row: row[:2])
    ]
