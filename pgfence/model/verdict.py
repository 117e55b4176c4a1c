"""What `fenced_apply` answers, and the one table of everything that can go wrong.

A row of `CODES` ties together a name, its SQLSTATE, the exception of `pgfence.errors`, the rule of
the contract, the meaning, and what to do next. The database holds names, SQLSTATEs and meanings
once more in `pgfence.error_codes()`; a test proves that both agree. docs/errors.md is this table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self


class Code(NamedTuple):
    """One thing that can go wrong. `sqlstate` is None where only the client can say it."""

    name: str
    sqlstate: str | None
    exception: str
    rule: str
    meaning: str
    next_step: str


_TABLE = (
    # Refusals: verdicts of fenced_apply() and advance(), raised by require().
    Code(
        "MALFORMED", "PF101", "MalformedError", "R3, R5",
        "the grant is not a well-formed lockGrant.v1 token",
        "Pass the token exactly as the registry gave it.",
    ),
    Code(
        "UNKNOWN_KEY", "PF102", "UnknownKeyError", "R5",
        "no valid grant key of the trust bundle signed this token",
        "Acquire again; if it stays, compare the registry's key with pgfence trust show.",
    ),
    Code(
        "BAD_SIGNATURE", "PF103", "BadSignatureError", "R5",
        "the signature does not belong to these bytes",
        "Do not use this token: it was changed after it was signed. Find out by whom.",
    ),
    Code(
        "WRONG_AUDIENCE", "PF104", "WrongAudienceError", "R5",
        "the grant was issued for another database",
        "Acquire from the registry of the database that you write to.",
    ),
    Code(
        "NOT_OWNER", "PF105", "NotOwnerError", "R6",
        "the session does not belong to the workload that owns the grant",
        "Log in as a role of the workload that acquired; see `pgfence workload list`.",
    ),
    Code(
        "REVOKED_EPOCH", "PF106", "RevokedEpochError", "R7",
        "the issuer epoch of the grant has been revoked",
        "Acquire again.",
    ),
    Code(
        "REBIND_REQUIRED", "PF107", "RebindRequiredError", "R7, R39",
        "this database is a copy of the one that was guarded",
        "Acquire again: that records the new database and mints above every old fence token. "
        "With the registry elsewhere renew, and take a later status proof.",
    ),
    Code(
        "STALE_POLICY", "PF108", "StalePolicyError", "R8",
        "the policy of the resource has a newer generation",
        "Acquire again, so that the grant carries the current policy.",
    ),
    Code(
        "WRONG_OPERATION", "PF109", "WrongOperationError", "R8",
        "the policy of the resource does not allow this operation class",
        "Use an operation class that the policy allows, or change the policy.",
    ),
    Code(
        "PAUSED", "PF110", "PausedError", "R8",
        "the resource is paused",
        "An operator must look at why it was paused, and then run: pgfence resume",
    ),
    Code(
        "STALE_OWNER", "PF111", "StaleOwnerError", "R10",
        "a newer owner has written",
        "Stop. Acquire again, and ask position() where the receipts of the newer owner end.",
    ),
    Code(
        "FENCE_REGRESSION", "PF112", "FenceRegressionError", "R10, R37",
        "the token sequence of the resource has gone back",
        "An operator must look at why, and then run: pgfence resume",
    ),
    Code(
        "ROOT_MISMATCH", "PF113", "RootMismatchError", "R11",
        "the operation root does not belong to this fence token",
        "Use a new request ID for a new operation.",
    ),
    Code(
        "EQUIVOCATION", "PF114", "EquivocationError", "R11",
        "two different grants carry the same root and fence token",
        "Stop the registry: it signed two grants for one token. Find out how.",
    ),
    Code(
        "PAYLOAD_CONFLICT", "PF115", "PayloadConflictError", "R12",
        "the segment was accepted with another payload",
        "Compare both payloads in the quarantine; nothing was changed.",
    ),
    Code(
        "NOT_HELD", "PF116", "NotHeldError", "R13",
        "the lease is not held now",
        "Acquire again; nothing was written. The reason says how the lease ended.",
    ),
    Code(
        "STALE_STATUS", "PF117", "StaleStatusError", "R13",
        "the status proof does not show that the lease is held now",
        "Ask the registry for a fresh status proof of this grant.",
    ),
    Code(
        "FENCE_STEP", "PF118", "FenceStepError", "R14",
        "the fence token jumps further than the policy allows",
        "Compare it with the registry's high-water mark; if it is right, widen the policy's step.",
    ),
    Code(
        "SEGMENT_GAP", "PF119", "SegmentGapError", "R14",
        "the segment is not the next one",
        "Apply the segments in order; last_segment of the verdict says where they end.",
    ),
    # Errors that the database raises.
    Code(
        "NOT_ADMITTED", "PF201", "NotAdmittedError", "R23, R24",
        "the row belongs to no resource admitted in this transaction",
        "Call fenced_apply() for the row's resource earlier in the same transaction.",
    ),
    Code(
        "GUARD_MISSING", "PF202", "GuardMissingError", "R25",
        "the guard of a protected table is missing or was changed",
        "The table's owner must call protect() again; find out who changed it.",
    ),
    Code(
        "LEASE_ENDED", "PF203", "LeaseEndedError", "R19, R20",
        "the lease ended before the transaction committed",
        "Nothing was written. Acquire again; use shorter transactions or a longer ttl.",
    ),
    Code(
        "CLOSED_TABLE", "PF204", "ClosedTableError", "R27",
        "only pgfence itself writes its tables",
        "Use pgfence's functions.",
    ),
    Code(
        "FENCE_LOWERED", "PF205", "FenceLoweredError", "R17",
        "a fence token never goes down",
        "Raise it above the highest one instead.",
    ),
    Code(
        "INVALID_ARGUMENT", "PF301", "InvalidArgumentError", "R1",
        "an argument is missing or out of range",
        "Correct the argument that the message names, and call again.",
    ),
    Code(
        "NO_WORKLOAD", "PF302", "NoWorkloadError", "R6",
        "the login role belongs to no workload",
        "Run `pgfence workload add NAME --role ROLE`.",
    ),
    Code(
        "REQUEST_CONFLICT", "PF303", "RequestConflictError", "R34",
        "the request ID was used with other arguments",
        "Use a new request ID for a new request.",
    ),
    Code(
        "UNPROTECTABLE", "PF304", "UnprotectableError", "R23",
        "the table cannot be protected as it is",
        "The message says what has to change first.",
    ),
    Code(
        "TRUST_REFUSED", "PF305", "TrustRefusedError", "R31, R32",
        "the trust bundle was refused",
        "The bundle in force is unchanged; the message says which rule the new one breaks.",
    ),
    Code(
        "ROLLOUT_REFUSED", "PF306", "RolloutRefusedError", "R29",
        "the rollout goes from shadow to enforced only",
        "Leave it enforced; the message says what under the prefix was enforced already.",
    ),
    Code(
        "DECISION_REFUSED", "PF307", "DecisionRefusedError", "R45",
        "the answer contradicts what the database knows, or may still come to know",
        "Reconcile again: what the receipts and fences prove needs no answer.",
    ),
    Code(
        "REGISTRY_ELSEWHERE", "PF308", "RegistryElsewhereError", "R13",
        "the registry of this database is in another one",
        "Name it: pgfence.connect(dsn, registry=...); in SQL, ask in the registry's database.",
    ),
    Code(
        "WRONG_COORDINATOR", "PF309", "WrongCoordinatorError", "R37",
        "another coordinator says who may hold",
        "Connect with the coordinator that the message names.",
    ),
    # What only the client can know.
    Code(
        "OWNERSHIP_UNKNOWN", None, "OwnershipUnknownError", "R42",
        "the registry has not confirmed the lease, so no new segment starts",
        "Wait with lease.wait_held(), or leave the block and acquire again.",
    ),
    Code(
        "MUTATION_UNKNOWN", None, "MutationUnknownError", "R44",
        "COMMIT was sent and its answer was lost, so the segment may or may not stand",
        "Apply the same segment with the same payload again: it is applied once, or replayed. "
        "Who no longer holds the lease asks fence.reconcile().",
    ),
    Code(
        "ACKNOWLEDGED_SEGMENTS_LOST", None, "AcknowledgedSegmentsLostError", "R47",
        "the database is behind what it has acknowledged: writes were lost",
        "Nothing goes on by itself. See what was lost, then call fence.accept_loss(error).",
    ),
    Code(
        "BUNDLE_SPLIT", None, "BundleSplitError", "R33",
        "the database's trust bundle does not follow from the one that this client trusts",
        "Ask the people who hold the root keys which digest is right; nothing was written.",
    ),
    Code(
        "ACQUIRE_TIMEOUT", None, "AcquireTimeoutError", "R36",
        "the resource did not become free in time",
        "Try again later; the request was withdrawn.",
    ),
    Code(
        "LOCK_SERVICE", None, "LockServiceError", "R37",
        "the lock service does not answer, or cannot be asked",
        "The message says why; the database and its leases are not concerned.",
    ),
    Code(
        "CLAIM_LOST", None, "ClaimLostError", "R37",
        "the session at the lock service ended while it waited, so nothing was granted",
        "Acquire again; a longer ttl bears a longer silence.",
    ),
    Code(
        "SCHEMA_VERSION", None, "SchemaVersionError", "R27",
        "the database's pgfence schema is missing or is not the one this client was built for",
        "Bring the older of the two up to date: the schema with `pgfence migrate`, or the package.",
    ),
    Code(
        "HANDLE_CLOSED", None, "HandleClosedError", "R41",
        "the handle was used after it was released or closed",
        "Acquire again with fence.hold().",
    ),
    Code(
        "FORKED", None, "ForkedError", "R35",
        "the handle was made by another process, and a lease is never shared by a fork",
        "Call pgfence.connect() in the child process.",
    ),
    Code(
        "BAD_PAYLOAD", None, "PayloadError", "R12",
        "the payload has no canonical JSON text",
        "Convert it to str, int, float, bool, None, list and dict with str keys, or pass a str.",
    ),
    Code(
        "KEY_FILE", None, "KeyFileError", "R53",
        "the key file cannot be used",
        "Name another file, or mend this one: a key file belongs to one user, with mode 0600.",
    ),
)  # fmt: skip

#: The table by name, in the order in which docs/errors.md shows it.
CODES = {code.name: code for code in _TABLE}

ACCEPTING = frozenset({"ACCEPTED", "REPLAYED", "ADVANCED"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of `fenced_apply` or `advance`, field by field the SQL type `pgfence.verdict`.

    `verdict` is ACCEPTED, REPLAYED or ADVANCED, or the name of a refusal; in shadow WOULD_REFUSE,
    and `would_refuse` has the name (R28). `highest_fence` and `last_segment` are those after the
    call. `receipt` and `payload_digest` are SHA-256 in hex.
    """

    verdict: str
    reason: str | None = None
    explanation: str | None = None
    resource: str | None = None
    fence_token: int | None = None
    segment_seq: int | None = None
    highest_fence: int | None = None
    last_segment: int | None = None
    receipt: str | None = None
    payload_digest: str | None = None
    accepted_at: datetime | None = None
    would_refuse: str | None = None

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Read a row of `select * from pgfence.fenced_apply(...)`."""
        return cls(*row)

    @property
    def accepted(self) -> bool:
        """Whether what was asked for stands in the database once the transaction has committed."""
        return self.verdict in ACCEPTING

    @property
    def refuses(self) -> bool:
        """Whether it is a refusal, and not one that shadow lets through."""
        return not self.accepted and self.would_refuse is None

    @property
    def lets_write(self) -> bool:
        """Whether the caller goes on and writes: ACCEPTED, or what is let through in shadow."""
        return self.verdict == "ACCEPTED" or self.would_refuse is not None

    def require(self) -> Self:
        """Return this verdict if it accepts or is let through in shadow, else raise its refusal.

        Call it after COMMIT: a rollback would take the evidence of the refusal with it (R18).
        """
        # Here and not above: errors.py reads this module's table.
        from pgfence.errors import refusal

        if self.refuses:
            raise refusal(self)
        return self
