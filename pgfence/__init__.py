"""Fencing tokens enforced inside PostgreSQL: a stale lock owner cannot write."""

from pgfence.client.async_fence import AsyncFence, connect_async
from pgfence.client.async_lease import AsyncLease
from pgfence.client.fence import Fence, connect
from pgfence.client.lease import Lease
from pgfence.errors import (
    AcknowledgedSegmentsLostError,
    AcquireTimeoutError,
    ClaimLostError,
    LeaseEndedError,
    LockServiceError,
    MutationUnknownError,
    NotAdmittedError,
    NotHeldError,
    OwnershipUnknownError,
    PayloadConflictError,
    PgfenceError,
    RefusedError,
    StaleOwnerError,
    translated_errors,
)
from pgfence.model.lease import State
from pgfence.model.outcome import Coordinates, Outcome
from pgfence.model.receipt import Position, Receipt
from pgfence.model.verdict import Verdict

__all__ = [
    "AcknowledgedSegmentsLostError",
    "AcquireTimeoutError",
    "AsyncFence",
    "AsyncLease",
    "ClaimLostError",
    "Coordinates",
    "Fence",
    "Lease",
    "LeaseEndedError",
    "LockServiceError",
    "MutationUnknownError",
    "NotAdmittedError",
    "NotHeldError",
    "Outcome",
    "OwnershipUnknownError",
    "PayloadConflictError",
    "PgfenceError",
    "Position",
    "Receipt",
    "RefusedError",
    "StaleOwnerError",
    "State",
    "Verdict",
    "connect",
    "connect_async",
    "translated_errors",
]
