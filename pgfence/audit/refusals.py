"""Read the evidence of what was refused (R18), and the quarantine (R12)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

Connection = psycopg.Connection[Any]

_REFUSALS = """
select verdict, reason, resource, fence_token, owner, session_role, last_segment_seq, authenticated,
       encode(grant_digest, 'hex') as grant_digest, occurrences, first_at, last_at, in_shadow,
       written_table
  from pgfence.refusals
 where occurrences > 0
 order by last_at desc
"""
_QUARANTINE = """
select resource, fence_token, segment_seq, encode(accepted_digest, 'hex') as accepted_digest,
       encode(offered_digest, 'hex') as offered_digest, session_role, first_at
  from pgfence.quarantined_segments
 order by resource, fence_token, segment_seq, first_at
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One kind of attempt, and how often it was refused.

    Resource, fence token, owner and grant digest are None where the grant's signature was not good
    (`authenticated` is False): what such a grant says, anybody may have written.
    """

    verdict: str
    reason: str | None
    resource: str | None
    fence_token: int | None
    owner: str | None
    session_role: str
    last_segment_seq: int | None
    authenticated: bool
    grant_digest: str | None
    occurrences: int
    first_at: datetime
    last_at: datetime
    #: It was let through (R28).
    in_shadow: bool
    #: In shadow: the table that was written without admission; the resource is the last one.
    written_table: str | None


@dataclass(frozen=True, slots=True)
class QuarantinedSegment:
    """Another payload that was offered for an accepted segment. Digests are SHA-256 in hex."""

    resource: str
    fence_token: int
    segment_seq: int
    accepted_digest: str
    offered_digest: str
    session_role: str
    first_at: datetime


def refusals(conn: Connection) -> list[Refusal]:
    """What was refused, the latest first."""
    return conn.cursor(row_factory=class_row(Refusal)).execute(_REFUSALS).fetchall()


def quarantine(conn: Connection) -> list[QuarantinedSegment]:
    """All quarantined segments."""
    return conn.cursor(row_factory=class_row(QuarantinedSegment)).execute(_QUARANTINE).fetchall()
