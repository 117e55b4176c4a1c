"""What became of a segment whose COMMIT was not answered (R45)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pgfence.model.receipt import Receipt


@dataclass(frozen=True, slots=True)
class Coordinates:
    """What names one segment: all that is needed to ask what became of it, also after a restart.

    `MutationUnknownError.coordinates` has them; `dataclasses.asdict()` makes JSON of them, and
    `Coordinates(**fields)` reads it. payload_digest: SHA-256 in hex of the payload that was sent;
    None asks for the segment whatever its payload.
    """

    resource: str
    operation_root: str
    segment_seq: int
    payload_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of `pgfence.reconcile`, field by field the SQL type `pgfence.outcome`.

    outcome: ACCEPTED: it stands, and `receipt` is its receipt. PROVEN_NOT_APPLIED: it does not
    stand, and no commit can come any more; what its work did outside the database is not undone.
    PAYLOAD_CONFLICT: the segment stands with another payload, the one asked about does not.
    UNRESOLVED: nothing is proven; `reason` is LEASE_HELD, LEASE_OVER, GRANT_REFUSED, PRUNED,
    IN_SHADOW, UNKNOWN_OPERATION or NOT_YOURS, `explanation` says it for people, and `ask` whom to
    ask.
    """

    outcome: str
    reason: str | None
    explanation: str
    ask: str | None
    resource: str
    operation_root: str
    segment_seq: int
    fence_token: int | None
    owner: str | None
    payload_digest: str | None
    receipt: Receipt | None

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Read a row of `select * from pgfence.reconcile(...)`."""
        outcome, reason, explanation, ask, resource, root, segment, fence, owner, payload = row[:10]
        digest, grant_digest, accepted_at = row[10:]
        receipt = digest and Receipt(
            resource=resource,
            fence_token=fence,
            segment_seq=segment,
            operation_root=root,
            grant_digest=grant_digest,
            payload_digest=payload,
            digest=digest,
            accepted_at=accepted_at,
            replayed=True,
        )
        return cls(
            outcome, reason, explanation, ask, resource, root, segment, fence, owner, payload,
            receipt,
        )  # fmt: skip

    @property
    def settled(self) -> bool:
        """Whether it is known for good if the segment stands."""
        return self.outcome != "UNRESOLVED"

    @property
    def accepted(self) -> bool:
        """Whether the segment stands, with the payload that was asked about."""
        return self.outcome == "ACCEPTED"
