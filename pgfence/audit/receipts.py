"""Read receipts, check their chains, and prune what is old (R22)."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row, scalar_row

Connection = psycopg.Connection[Any]

_RECEIPTS = """
select r.resource, r.fence_token, r.segment_seq, o.owner, r.session_role, r.accepted_at,
       r.operation_root, encode(r.grant_digest, 'hex') as grant_digest,
       encode(r.payload_digest, 'hex') as payload_digest, encode(r.digest, 'hex') as digest
  from pgfence.receipts as r
  left join pgfence.operations as o on o.resource = r.resource and o.fence_token = r.fence_token
 where r.resource = %s
 order by r.fence_token, r.segment_seq
"""

# Receipts are many to a resource: the index is asked for the next one, instead of reading them all.
_RESOURCES = """
with recursive of_receipts (resource) as (
    select min(r.resource) from pgfence.receipts as r
     union all
    select (select min(r.resource) from pgfence.receipts as r where r.resource > o.resource)
      from of_receipts as o where o.resource is not null
)
select f.resource from pgfence.fences as f
 union select o.resource from pgfence.operations as o
 union select s.resource from pgfence.pruned_stretches as s
 union select o.resource from of_receipts as o where o.resource is not null
 order by resource
"""


@dataclass(frozen=True, slots=True)
class AcceptedSegment:
    """A receipt as an auditor reads it. Digests are SHA-256 in hex; `digest` is the receipt's."""

    resource: str
    fence_token: int
    segment_seq: int
    #: Workload that owned the grant; None where somebody has deleted its row of operations.
    owner: str | None
    #: Login role that applied the segment.
    session_role: str
    accepted_at: datetime
    operation_root: str
    grant_digest: str
    payload_digest: str
    digest: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Whether the receipts of one resource form an unbroken chain, and where they do not."""

    resource: str
    #: Receipts that fit: all of them where the chain is whole, else those before the bad one.
    receipts: int
    #: Receipts that were pruned, and of which the ends are kept.
    pruned: int
    ok: bool
    #: None also where no receipt is bad, and what is gone is the row of fences.
    first_bad_fence: int | None
    first_bad_segment: int | None
    problem: str | None

    @property
    def where(self) -> str:
        """Where the first bad receipt is, for people; empty where there is none."""
        fence, segment = self.first_bad_fence, self.first_bad_segment
        return "" if fence is None else f"fence {fence}, segment {segment}: "


@dataclass(frozen=True, slots=True)
class Prunable:
    """What pruning would take of one resource: its receipts up to this fence and segment."""

    resource: str
    receipts: int
    to_fence: int
    to_segment: int
    #: Size of the rows, without their index.
    bytes: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """A stretch of receipts that was pruned; or none, and why, where `problem` is not None."""

    resource: str
    receipts: int
    from_fence: int | None
    from_segment: int | None
    to_fence: int | None
    to_segment: int | None
    problem: str | None


def receipts_of(conn: Connection, resource: str) -> list[AcceptedSegment]:
    """The receipts of a resource, in the order of their chain; none if nothing was accepted."""
    return (
        conn.cursor(row_factory=class_row(AcceptedSegment))
        .execute(_RECEIPTS, (resource,))
        .fetchall()
    )


def pruned_of(conn: Connection, resource: str) -> int:
    """How many receipts of a resource were pruned."""
    query = "select coalesce(sum(receipts), 0) from pgfence.pruned_stretches where resource = %s"
    number = conn.cursor(row_factory=scalar_row).execute(query, (resource,)).fetchone()
    return int(number or 0)


def resources(conn: Connection) -> list[str]:
    """Every resource that was ever asked for, in order; also where its row of fences is gone."""
    return conn.cursor(row_factory=scalar_row).execute(_RESOURCES).fetchall()


def verify(conn: Connection, resource: str) -> Chain:
    """Walk the chain of a resource. Needs no more than pgfence_app."""
    row = (
        conn.cursor(row_factory=class_row(Chain))
        .execute("select * from pgfence.verify_receipts(%s)", (resource,))
        .fetchone()
    )
    assert row is not None  # noqa: S101 - the function answers one row
    return row


def prunable(conn: Connection, retention: timedelta, resource: str | None) -> list[Prunable]:
    """Receipts of superseded fences older than the retention; resource: of this one alone.

    Changes nothing, and needs no more than pgfence_auditor.
    """
    return (
        conn.cursor(row_factory=class_row(Prunable))
        .execute("select * from pgfence.prunable_receipts(%s, %s)", (retention, resource))
        .fetchall()
    )


def prune(conn: Connection, retention: timedelta, resource: str, batch: int) -> Iterator[Pruned]:
    """Prune a resource, in transactions of at most `batch` receipts; what each of them did.

    conn: a connection in autocommit of a member of pgfence_owner. A chain that does not verify is
    not pruned, whichever of its receipts is bad: the last answer then names the problem.
    """
    chain = verify(conn, resource)
    if not chain.ok:
        problem = f"not pruned: {chain.where}{chain.problem}"
        yield Pruned(resource, 0, None, None, None, None, problem)
        return
    cursor = conn.cursor(row_factory=class_row(Pruned))
    while True:
        query = "select * from pgfence.prune_receipts(%s, %s, %s)"
        row = cursor.execute(query, (resource, retention, batch)).fetchone()
        assert row is not None  # noqa: S101 - the function answers one row
        if row.receipts or row.problem:
            yield row
        if row.receipts < batch:
            return
