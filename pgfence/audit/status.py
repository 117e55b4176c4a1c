"""How one resource stands: who holds it, where its receipts end, who waits, what was refused."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg.rows import class_row, scalar_row

from pgfence.audit import refusals, rollout
from pgfence.audit.receipts import AcceptedSegment
from pgfence.audit.refusals import Refusal
from pgfence.model.receipt import NOWHERE, Position

Connection = psycopg.Connection[Any]
_T = TypeVar("_T")

#: Kinds of refusals that are shown: the latest.
_LATEST = 5

_MAY_AUDIT = "select pg_catalog.has_table_privilege('pgfence_registry.grants', 'select')"
_POSITION = "select * from pgfence.position(%(resource)s)"
# The lease that was granted last and not given back, as the registry's clock has it (R38).
_HOLDER = """
select g.owner, g.fence_token, g.lease, g.request_id, g.granted_at, g.lease_ends_at,
       greatest(0.0, extract(epoch from g.lease_ends_at - clock_timestamp()) * 1000.0)::bigint
           as remaining_ms,
       g.token is not null as signed
  from pgfence.fences as f
  join pgfence_registry.grants as g on g.lease = f.current_lease
 where f.resource = %(resource)s and g.lease_ends_at > clock_timestamp()
"""
_PAUSED_BECAUSE = "select paused_because from pgfence.fences where resource = %(resource)s"
# As overdue_sessions() counts them: one that is blocked cannot say that it is alive.
_WAITERS = """
select workload, request_id, operation_class, asked_at
  from pgfence_registry.requests
 where resource = %(resource)s and state = 'WAITING'
   and alive_until > clock_timestamp() - interval '1 minute'
 order by asked_at, workload, request_id
"""
_HELD_UP_BY = """
select h.holder as pid, a.usename::text as role, min(h.since) as since
  from pgfence.fences as f
  join pgfence._held_rows as h
    on h.relation::oid = 'pgfence.fences'::regclass::oid and h.at = f.ctid
  left join pg_stat_activity as a on a.pid = h.holder
 where f.resource = %(resource)s
 group by h.holder, a.usename
"""
_LAST_RECEIPT = """
select r.resource, r.fence_token, r.segment_seq, o.owner, r.session_role, r.accepted_at,
       r.operation_root, encode(r.grant_digest, 'hex') as grant_digest,
       encode(r.payload_digest, 'hex') as payload_digest, encode(r.digest, 'hex') as digest
  from pgfence.receipts as r
  left join pgfence.operations as o on o.resource = r.resource and o.fence_token = r.fence_token
 where r.resource = %(resource)s
 order by r.fence_token desc, r.segment_seq desc limit 1
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lease that has not ended."""

    owner: str
    fence_token: int
    lease: str
    request_id: str
    granted_at: datetime
    #: Unless it is renewed until then.
    lease_ends_at: datetime
    remaining_ms: int
    #: Without a signature the grant is of no use yet: is a registry process running?
    signed: bool


@dataclass(frozen=True, slots=True)
class Waiter:
    """Who waits for the resource, the first in the queue first."""

    workload: str
    request_id: str
    operation_class: str
    asked_at: datetime


@dataclass(frozen=True, slots=True)
class Session:
    """Whose open transaction holds the fence row while somebody waits for it."""

    #: None: it is prepared, see pg_prepared_xacts.
    pid: int | None
    role: str | None
    #: Since when somebody waits.
    since: datetime


@dataclass(frozen=True, slots=True)
class Audited:
    """What only an auditor may see of a resource."""

    holder: Holder | None
    paused_because: str | None
    #: SHADOW or ENFORCED.
    mode: str
    waiters: list[Waiter]
    #: Several only where they share the row.
    held_up_by: list[Session]
    last_receipt: AcceptedSegment | None
    #: The latest kinds of refusals whose grant named the resource and was genuine.
    refusals: list[Refusal]


@dataclass(frozen=True, slots=True)
class Status:
    """How a resource stands; `audited` is None for a role that is not in pgfence_auditor."""

    resource: str
    position: Position
    audited: Audited | None


def status(conn: Connection, resource: str) -> Status:
    """Read how a resource stands, as far as the role of `conn` may see it."""
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read, read only")
        position = _one(conn, Position, _POSITION, resource) or NOWHERE
        may_audit = conn.cursor(row_factory=scalar_row).execute(_MAY_AUDIT).fetchone()
        return Status(resource, position, _audited(conn, resource) if may_audit else None)


def _audited(conn: Connection, resource: str) -> Audited:
    wanted = {"resource": resource}
    return Audited(
        holder=_one(conn, Holder, _HOLDER, resource),
        paused_because=conn.cursor(row_factory=scalar_row)
        .execute(_PAUSED_BECAUSE, wanted)
        .fetchone(),
        mode=rollout.mode(conn, resource),
        waiters=_all(conn, Waiter, _WAITERS, resource),
        held_up_by=_all(conn, Session, _HELD_UP_BY, resource),
        last_receipt=_one(conn, AcceptedSegment, _LAST_RECEIPT, resource),
        refusals=[r for r in refusals.refusals(conn) if r.resource == resource][:_LATEST],
    )


def _one(conn: Connection, kind: type[_T], query: str, resource: str) -> _T | None:
    return next(iter(_all(conn, kind, query, resource)), None)


def _all(conn: Connection, kind: type[_T], query: str, resource: str) -> list[_T]:
    cursor = conn.cursor(row_factory=class_row(kind))
    return cursor.execute(query.encode(), {"resource": resource}).fetchall()
