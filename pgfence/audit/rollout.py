"""Read what is in shadow, and the evidence of what enforcing it would refuse (R28, R29)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row, scalar_row, tuple_row

Connection = psycopg.Connection[Any]

_ENTRIES = """
select r.prefix, case when r.enforced_since is null then 'SHADOW' else 'ENFORCED' end as mode,
       r.shadow_since, r.shadow_by, r.enforced_since, r.enforced_by,
       (select coalesce(sum(f.receipt_count), 0)::bigint
          from pgfence.fences as f
         where starts_with(f.resource, r.prefix)
           and not exists (select from pgfence.rollout as l
                            where starts_with(f.resource, l.prefix)
                              and length(l.prefix) > length(r.prefix))) as accepted,
       coalesce(e.would_refuse, 0) as would_refuse, coalesce(e.not_admitted, 0) as not_admitted
  from pgfence.rollout as r
  left join (
        select shadow_prefix,
               (sum(occurrences) filter (where verdict <> 'NOT_ADMITTED'))::bigint as would_refuse,
               (sum(occurrences) filter (where verdict = 'NOT_ADMITTED'))::bigint as not_admitted
          from pgfence.refusals
         where in_shadow and occurrences > 0
         group by shadow_prefix) as e on e.shadow_prefix = r.prefix
 order by r.prefix
"""
_ENTRY_OF = """
select prefix, case when enforced_since is null then 'SHADOW' else 'ENFORCED' end
  from pgfence.rollout
 where starts_with(%(prefix)s, prefix) order by length(prefix) desc limit 1
"""
_ACCEPTED = """
select coalesce(sum(receipt_count), 0)::bigint from pgfence.fences
 where starts_with(resource, %(prefix)s)
"""
# What is known only by the entry above the prefix may have been of other resources: safer to show.
_LET_THROUGH = """
select verdict, reason, resource, owner, session_role, written_table as "table", shadow_prefix,
       occurrences, first_at, last_at
  from pgfence.refusals
 where in_shadow and occurrences > 0
   and (starts_with(shadow_prefix, %(prefix)s)
        or shadow_prefix = %(entry)s and (resource is null or written_table is not null
                                          or starts_with(resource, %(prefix)s)))
 order by verdict = 'NOT_ADMITTED', last_at desc
"""
# Whatever was let through before this snapshot has a transaction ID below its xmax.
_NEXT_TRANSACTION = "select pg_snapshot_xmax(pg_current_snapshot())::text"
# A snapshot has the transactions of all databases. Whoever has an ID holds the lock on it, which
# everybody may see, until after the end; one without is only about to take it. So what cannot be
# shown to be another database's is taken for one of ours.
_ENDED_BEFORE = """
select not exists (
    select from pg_snapshot_xip(pg_current_snapshot()) as t (xid)
     where t.xid < %s::xid8
       and not exists (select from pg_locks as l join pg_stat_activity as a on a.pid = l.pid
                         join pg_database as d on d.oid = a.datid
                        where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock'
                          and l.transactionid = t.xid::xid and d.datname <> current_database())
       and not exists (select from pg_prepared_xacts as p
                        where p.transaction = t.xid::xid and p.database <> current_database()))
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A prefix that is or was in shadow, or is enforced for good."""

    prefix: str
    #: SHADOW or ENFORCED.
    mode: str
    shadow_since: datetime | None
    shadow_by: str | None
    enforced_since: datetime | None
    enforced_by: str | None
    #: Segments that were accepted, where no longer prefix has an entry.
    accepted: int
    #: Calls that would have been refused, as far as the evidence goes back.
    would_refuse: int
    #: Transactions that wrote protected rows without admission, likewise.
    not_admitted: int


@dataclass(frozen=True, slots=True)
class LetThrough:
    """One kind of attempt that would have been refused.

    Verdict NOT_ADMITTED: `table` was written without admission; `occurrences` counts transactions
    and `resource` is the last one. Resource and owner are None where the grant's signature was not
    good.
    """

    verdict: str
    reason: str | None
    resource: str | None
    owner: str | None
    session_role: str
    table: str | None
    shadow_prefix: str
    occurrences: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Evidence:
    """What enforcing a prefix would have refused. The kinds are bounded; the log has them all."""

    prefix: str
    #: The entry that decides for the prefix now; None: it is enforced, having none.
    entry: Entry | None
    accepted: int
    would_refuse: list[LetThrough]
    not_admitted: list[LetThrough]


def entries(conn: Connection) -> list[Entry]:
    """All entries."""
    return conn.cursor(row_factory=class_row(Entry)).execute(_ENTRIES).fetchall()


def mode(conn: Connection, resource: str) -> str:
    """SHADOW or ENFORCED; what has no entry is enforced."""
    cursor = conn.cursor(row_factory=tuple_row)
    entry = cursor.execute(_ENTRY_OF, {"prefix": resource}).fetchone()
    return "ENFORCED" if entry is None else str(entry[1])


def evidence(conn: Connection, prefix: str) -> Evidence:
    """What is known of the resources that start with a prefix."""
    value = conn.cursor(row_factory=scalar_row)
    name = value.execute(_ENTRY_OF, {"prefix": prefix}).fetchone()
    accepted = value.execute(_ACCEPTED, {"prefix": prefix}).fetchone()
    found = (
        conn.cursor(row_factory=class_row(LetThrough))
        .execute(_LET_THROUGH, {"prefix": prefix, "entry": name})
        .fetchall()
    )
    return Evidence(
        prefix=prefix,
        entry=next((e for e in entries(conn) if e.prefix == name), None),
        accepted=int(accepted or 0),
        would_refuse=[f for f in found if f.verdict != "NOT_ADMITTED"],
        not_admitted=[f for f in found if f.verdict == "NOT_ADMITTED"],
    )


def next_transaction(conn: Connection) -> str:
    """An ID above those of all transactions that may have written before now."""
    return str(conn.cursor(row_factory=scalar_row).execute(_NEXT_TRANSACTION).fetchone())


def have_ended(conn: Connection, before: str) -> bool:
    """Whether all transactions of this database with an ID below `before` have ended."""
    row = conn.execute(_ENDED_BEFORE, (before,)).fetchone()
    return row is not None and bool(row[0])
