"""One tree of exceptions. `pgfence.model.verdict.CODES` says what each means and what to do next.

    PgfenceError
    ├── RefusedError           fenced_apply() or advance() refused; carries the verdict
    │   └── StaleOwnerError, NotHeldError, SegmentGapError, ... one for each verdict
    ├── ServerError          the database raised an error of SQLSTATE class PF
    │   └── NotAdmittedError, LeaseEndedError, ...
    ├── TokenRefusedError      a token failed the client's own check
    └── OwnershipUnknownError, MutationUnknownError, ... what only the client can know

Errors of the database are mapped by SQLSTATE and never by a driver's exception class: the drivers
disagree about the class of a SQLSTATE that they do not know.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from pgfence.model.outcome import Coordinates
from pgfence.model.receipt import Position, Receipt
from pgfence.model.verdict import CODES, Code, Verdict


class PgfenceError(Exception):
    """Base of everything that pgfence raises on purpose."""

    code: ClassVar[Code | None] = None

    @property
    def next_step(self) -> str | None:
        """What to do about it, for people."""
        return self.code.next_step if self.code else None


class RefusedError(PgfenceError):
    """`fenced_apply` or `advance` refused; nothing was changed. `verdict` says what and why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict

    def __str__(self) -> str:
        verdict = self.verdict
        name = f"{verdict.verdict} ({verdict.reason})" if verdict.reason else verdict.verdict
        meaning = self.code.meaning if self.code else "refused"
        return f"{name}: {verdict.explanation or meaning}"


class MalformedError(RefusedError):
    """The grant is not a well-formed token."""

    code = CODES["MALFORMED"]


class UnknownKeyError(RefusedError):
    """No valid grant key of the trust bundle signed the token."""

    code = CODES["UNKNOWN_KEY"]


class BadSignatureError(RefusedError):
    """The token was changed after it was signed."""

    code = CODES["BAD_SIGNATURE"]


class WrongAudienceError(RefusedError):
    """The grant is for another database."""

    code = CODES["WRONG_AUDIENCE"]


class NotOwnerError(RefusedError):
    """The grant belongs to another workload."""

    code = CODES["NOT_OWNER"]


class RevokedEpochError(RefusedError):
    """The issuer epoch was revoked."""

    code = CODES["REVOKED_EPOCH"]


class RebindRequiredError(RefusedError):
    """The database is a copy."""

    code = CODES["REBIND_REQUIRED"]


class StalePolicyError(RefusedError):
    """The policy has changed since the grant."""

    code = CODES["STALE_POLICY"]


class WrongOperationError(RefusedError):
    """The policy does not allow the operation class."""

    code = CODES["WRONG_OPERATION"]


class PausedError(RefusedError):
    """The resource is paused."""

    code = CODES["PAUSED"]


class StaleOwnerError(RefusedError):
    """A newer owner has written."""

    code = CODES["STALE_OWNER"]


class FenceRegressionError(RefusedError):
    """The token sequence has gone back."""

    code = CODES["FENCE_REGRESSION"]


class RootMismatchError(RefusedError):
    """The operation root does not belong to the fence token."""

    code = CODES["ROOT_MISMATCH"]


class EquivocationError(RefusedError):
    """Two grants carry the same root and fence token."""

    code = CODES["EQUIVOCATION"]


class PayloadConflictError(RefusedError):
    """The segment was accepted with another payload."""

    code = CODES["PAYLOAD_CONFLICT"]


class NotHeldError(RefusedError):
    """The lease is over: `verdict.reason` is EXPIRED, RELEASED, SUPERSEDED or UNKNOWN_GRANT."""

    code = CODES["NOT_HELD"]


class StaleStatusError(RefusedError):
    """The status proof does not show that the lease is held."""

    code = CODES["STALE_STATUS"]


class FenceStepError(RefusedError):
    """The fence token jumps too far."""

    code = CODES["FENCE_STEP"]


class SegmentGapError(RefusedError):
    """The segment is not the next one."""

    code = CODES["SEGMENT_GAP"]


class ServerError(PgfenceError):
    """The database raised an error of SQLSTATE class PF.

    `detail` is what the error says for programs, `hint` the next step, `rule` the rule it enforces.
    """

    def __init__(
        self,
        message: str,
        detail: Mapping[str, Any] | None = None,
        hint: str | None = None,
        rule: str | None = None,
    ) -> None:
        super().__init__(message)
        self.detail = dict(detail or {})
        self.hint = hint
        self.rule = rule

    @property
    def next_step(self) -> str | None:
        """What to do about it: the database's own hint where it gave one."""
        return self.hint or super().next_step


class NotAdmittedError(ServerError):
    """A write outside what this transaction was admitted for."""

    code = CODES["NOT_ADMITTED"]


class GuardMissingError(ServerError):
    """The guard of a protected table is missing or was changed."""

    code = CODES["GUARD_MISSING"]


class LeaseEndedError(ServerError):
    """The lease ended while the transaction was open; nothing of it was written."""

    code = CODES["LEASE_ENDED"]


class ClosedTableError(ServerError):
    """A direct write to a table of pgfence."""

    code = CODES["CLOSED_TABLE"]


class FenceLoweredError(ServerError):
    """An attempt to lower a fence token."""

    code = CODES["FENCE_LOWERED"]


class InvalidArgumentError(ServerError):
    """An argument is missing or out of range. The client raises it too, before it asks."""

    code = CODES["INVALID_ARGUMENT"]


class NoWorkloadError(ServerError):
    """The login role belongs to no workload."""

    code = CODES["NO_WORKLOAD"]


class RequestConflictError(ServerError):
    """The request ID was used with other arguments."""

    code = CODES["REQUEST_CONFLICT"]


class UnprotectableError(ServerError):
    """`protect` refuses the table."""

    code = CODES["UNPROTECTABLE"]


class TrustRefusedError(ServerError):
    """The trust bundle was refused."""

    code = CODES["TRUST_REFUSED"]


class RolloutRefusedError(ServerError):
    """The prefix was enforced, so it is not put in shadow."""

    code = CODES["ROLLOUT_REFUSED"]


class DecisionRefusedError(ServerError):
    """The answer contradicts what the database knows, or may still come to know (R45)."""

    code = CODES["DECISION_REFUSED"]


class RegistryElsewhereError(ServerError):
    """The registry of this database is in another one, and was asked for here (R13)."""

    code = CODES["REGISTRY_ELSEWHERE"]


class WrongCoordinatorError(ServerError):
    """The request came by way of a coordinator that is not the registry's."""

    code = CODES["WRONG_COORDINATOR"]


class TokenRefusedError(PgfenceError):
    """A token failed the client's own check; `verdict` is the name of the refusal."""

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(verdict, reason)
        self.verdict = verdict
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"


class OwnershipUnknownError(PgfenceError):
    """Renewal is uncertain, so no new segment starts. The lease may still be held."""

    code = CODES["OWNERSHIP_UNKNOWN"]


class MutationUnknownError(PgfenceError):
    """The answer to COMMIT was lost: the segment may or may not stand.

    It is never retried by itself and must not be reported as failed. Carries the operation ID and
    the payload's digest, which is all that `fence.reconcile()` needs to find out. Where segments
    were applied together, that is the first; `others` are the digests of those behind it, which
    stand if it stands, and else do not.
    """

    code = CODES["MUTATION_UNKNOWN"]

    def __init__(
        self,
        resource: str,
        operation_root: str,
        segment_seq: int,
        payload_digest: str,
        others: tuple[str, ...] = (),
    ) -> None:
        super().__init__(resource, operation_root, segment_seq, payload_digest, others)
        self.resource = resource
        self.operation_root = operation_root
        self.segment_seq = segment_seq
        self.payload_digest = payload_digest
        self.others = others

    @property
    def coordinates(self) -> Coordinates:
        """What to keep if somebody else is to ask what became of it."""
        return Coordinates(
            self.resource, self.operation_root, self.segment_seq, self.payload_digest
        )

    def __str__(self) -> str:
        return (
            f"the answer to COMMIT was lost: segment {self.segment_seq} of {self.resource} "
            f"(operation {self.operation_root}, payload {self.payload_digest}) "
            + (f"and the {len(self.others)} behind it " if self.others else "")
            + "may or may not stand"
        )


class AcknowledgedSegmentsLostError(PgfenceError):
    """The database lacks segments that it has acknowledged to this worker, so nothing goes on.

    A standby was promoted while it was behind, or files were put back. `lost` are the receipts of
    the segments that are missing, in order, as far as the worker knows of them; `position` is where
    the receipts end now. When it is decided what becomes of them, call `Fence.accept_loss`.
    """

    code = CODES["ACKNOWLEDGED_SEGMENTS_LOST"]

    def __init__(self, resource: str, lost: tuple[Receipt, ...], position: Position) -> None:
        super().__init__(resource, lost, position)
        self.resource = resource
        self.lost = lost
        self.position = position

    def __str__(self) -> str:
        named = [
            f"segment {receipt.segment_seq} of fence {receipt.fence_token} ({receipt.digest})"
            for receipt in self.lost[:_NAMED]
        ]
        if len(self.lost) > _NAMED:
            named.append(f"and {len(self.lost) - _NAMED} more")
        at = self.position
        return (
            f"{self.resource}: acknowledged and lost: {', '.join(named)}; the receipts in the "
            f"database end with segment {at.last_segment} of fence {at.highest_fence}"
        )


#: Lost segments that a message names one by one.
_NAMED = 10


class BundleSplitError(PgfenceError):
    """The database's trust bundle does not follow from ours; nothing was written."""

    code = CODES["BUNDLE_SPLIT"]


class AcquireTimeoutError(PgfenceError):
    """The resource did not become free in time; the request was withdrawn."""

    code = CODES["ACQUIRE_TIMEOUT"]


class LockServiceError(PgfenceError):
    """The lock service does not answer, or its client library is missing."""

    code = CODES["LOCK_SERVICE"]


class ClaimLostError(PgfenceError):
    """The worker's session at the lock service ended while it waited; nothing was granted."""

    code = CODES["CLAIM_LOST"]


class SchemaVersionError(PgfenceError):
    """The database's pgfence schema does not fit this client."""

    code = CODES["SCHEMA_VERSION"]


class HandleClosedError(PgfenceError):
    """The handle was used after it was released or closed."""

    code = CODES["HANDLE_CLOSED"]


class ForkedError(PgfenceError):
    """The handle belongs to the parent process."""

    code = CODES["FORKED"]


class PayloadError(PgfenceError, ValueError):
    """The payload has no canonical JSON text."""

    code = CODES["BAD_PAYLOAD"]


class KeyFileError(PgfenceError):
    """The key file cannot be used: others may read it, or it holds no key."""

    code = CODES["KEY_FILE"]


def _subclasses(base: type[PgfenceError]) -> Iterator[type[PgfenceError]]:
    for child in base.__subclasses__():
        yield child
        yield from _subclasses(child)


#: The exception of each name in the table.
BY_NAME = {child.code.name: child for child in _subclasses(PgfenceError) if child.code}
_BY_SQLSTATE = {code.sqlstate: code for code in CODES.values() if code.sqlstate}


def refusal(verdict: Verdict) -> RefusedError:
    """The exception for a refusing verdict; plain `RefusedError` for one of a newer schema."""
    error = BY_NAME.get(verdict.verdict, RefusedError)
    return error(verdict) if issubclass(error, RefusedError) else RefusedError(verdict)


def from_sqlstate(
    sqlstate: str | None,
    message: str,
    detail: str | None = None,
    hint: str | None = None,
    rule: str | None = None,
) -> PgfenceError | None:
    """The exception for an error that the database reported; None if it is not one of pgfence's.

    The arguments are the fields of the error report; `rule` is its constraint name.
    """
    code = _BY_SQLSTATE.get(sqlstate or "")
    if code is None:
        return None
    error = BY_NAME[code.name]
    fields = _fields(detail)
    if issubclass(error, ServerError):
        return error(message, fields, hint, rule)
    known = {key: value for key, value in fields.items() if key in _DETAIL_OF_REFUSAL}
    return refusal(Verdict(**{"explanation": message} | known | {"verdict": code.name}))


class Said(NamedTuple):
    """The server's report in an exception of psycopg, psycopg2, asyncpg or SQLAlchemy."""

    message: str
    sqlstate: str | None = None
    detail: str | None = None
    hint: str | None = None
    rule: str | None = None
    #: The session is over.
    fatal: bool = False


def said_by(error: BaseException) -> Said:
    """Read a driver's exception, by its attributes: no driver is imported."""
    # SQLAlchemy keeps the driver's exception; for asyncpg one of its own, caused by asyncpg's. That
    # a connection has ended is caused by what the server said before.
    wrapped = getattr(error, "orig", None)
    error = cause = wrapped or error
    while cause is not None:
        if hasattr(cause, "severity_en"):
            error = cause
        cause = cause.__cause__
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if wrapped and sqlstate == _UNDEFINED_OBJECT and error.__context__ is not None:
        # Where PREPARE TRANSACTION fails, SQLAlchemy goes on to roll back what was not prepared.
        return said_by(error.__context__)
    diag: Any = getattr(error, "diag", None)
    if diag is not None:
        return Said(
            diag.message_primary or str(error),
            sqlstate,
            diag.message_detail,
            diag.message_hint,
            diag.constraint_name,
            diag.severity_nonlocalized in _FATAL,
        )
    return Said(
        getattr(error, "message", None) or str(error),
        sqlstate,
        getattr(error, "detail", None),
        getattr(error, "hint", None),
        getattr(error, "constraint_name", None),
        getattr(error, "severity_en", None) in _FATAL,
    )


def from_driver(error: BaseException) -> PgfenceError | None:
    """The exception for what psycopg, psycopg2, asyncpg or SQLAlchemy raised on a connection of
    yours; None if it is not one of pgfence's.
    """
    said = said_by(error)
    return from_sqlstate(said.sqlstate, said.message, said.detail, said.hint, said.rule)


@contextmanager
def translated_errors() -> Iterator[None]:
    """In the block, also where it awaits, the drivers' exceptions that are pgfence's are raised as
    such: `NotAdmittedError` by a statement on your own connection, `LeaseEndedError` by its COMMIT.
    """
    try:
        yield
    except PgfenceError:
        raise
    except Exception as error:
        ours = from_driver(error)
        if ours is None:
            raise
        raise ours from error


_UNDEFINED_OBJECT = "42704"
_FATAL = frozenset({"FATAL", "PANIC"})
_DETAIL_OF_REFUSAL = frozenset(Verdict.__slots__) - {"accepted_at"}


def _fields(detail: str | None) -> dict[str, Any]:
    try:
        fields = json.loads(detail or "{}")
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
