"""What stands in the database: one segment's receipt, and where the receipts of a resource end."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof that one segment was accepted.

    Operation ID = (resource, operation_root, segment_seq). Digests are SHA-256 in hex; `digest` is
    the receipt's own, which the next receipt of the resource includes (R22). Two receipts are equal
    if they are the same row, replayed or not.
    """

    resource: str
    fence_token: int
    segment_seq: int
    operation_root: str
    grant_digest: str
    payload_digest: str
    digest: str
    accepted_at: datetime
    #: The segment stood already, so nothing was done this time (R12).
    replayed: bool = field(default=False, compare=False)
    #: In shadow (R28): the refusal that was let through. Then nothing was accepted, `digest` is
    #: empty, and `accepted_at` says when the client was told.
    would_refuse: str | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """Where the receipts of a resource end: what a new owner asks before it starts.

    The successor names `operation_root` in its own `continues_root` when it takes the work up.
    """

    highest_fence: int
    operation_root: str | None
    last_segment: int
    owner: str | None
    continues_root: str | None
    paused: bool
    #: Segments of this operation and of those that it took up, by whichever owner.
    total_segments: int
    #: Of the last segment there is, also when a later owner has raised the fence, but not written.
    written_root: str | None


#: The position of a resource for which nothing was ever asked.
NOWHERE = Position(0, None, 0, None, None, paused=False, total_segments=0, written_root=None)
