"""The way in: `connect` to a guarded database, `hold` a resource."""

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Self

from pgfence import errors
from pgfence.client import protocol
from pgfence.client.database import Database, monotonic
from pgfence.client.lease import Lease, acquire
from pgfence.client.protocol import Request
from pgfence.client.trust import Verifier
from pgfence.drivers.psycopg import Connection, Session, run_within
from pgfence.model.grant import Grant, operation_root
from pgfence.model.payload import payload_digest, payload_text
from pgfence.model.receipt import Position
from pgfence.model.verdict import Verdict

_log = logging.getLogger("pgfence.client")


def connect(
    dsn: str, *, bundle_digest: str | None = None, prepare_threshold: int | None = 5
) -> "Fence":
    """Reach a guarded database, as a login role that is in pgfence_app and in a workload.

    bundle_digest: SHA-256 in hex of a trust bundle that this client trusts: the one in force, or
    an earlier one from which that follows by the signatures of its root keys. By default the client
    trusts the one that is in force when it connects; from then on it accepts only what follows from
    it. prepare_threshold: as in psycopg; None behind a pooler in transaction mode.

    Raises `SchemaVersionError` (and says what to run), `BundleSplitError` when the bundle in force
    does not follow from the one named, `TrustRefusedError`, `NoWorkloadError`, and what psycopg
    raises.
    """
    session = Session(dsn, prepare_threshold=prepare_threshold)
    try:
        found = session.run(protocol.introduce(monotonic, bundle_digest))
    except BaseException:
        session.close()
        raise
    server_us = round(found.server_time.timestamp() * 1_000_000)

    def now_us() -> int:
        return server_us + round((monotonic() - found.asked_at) * 1_000_000)

    database = Database(dsn, prepare_threshold, Verifier(found.bundle, now_us))
    database.put_back(session)
    return Fence(database)


class Fence:
    """A guarded database as one process sees it; made by `connect`. Threads may share it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections. Leases that are held live on with their own."""
        self._database.refuse_fork()
        self._closed = True
        self._database.close()

    @contextmanager
    def hold(
        self,
        resource: str,
        *,
        operation: str,
        ttl: float = 10.0,
        arguments: object = "",
        request_id: str | None = None,
        continues_root: str = "",
        timeout: float | None = None,
    ) -> Iterator[Lease]:
        """Acquire a resource, renew in the background, and release it when the block is left.

        operation: the class of work, which the policy must allow. ttl: seconds that the lease lasts
        without renewal. arguments: what distinguishes this operation, as in `payload_text`; part of
        the operation root. request_id: asking again with the same one gives the same grant (R34),
        made up by default. continues_root: the root of the operation that this one takes up, see
        `position`. timeout: seconds to wait for the resource; None waits for ever, 0 asks once. A
        grant that is decided gets a second longer to be signed.

        Raises `AcquireTimeoutError`, `InvalidArgumentError`, `RequestConflictError`, `PausedError`,
        `WrongOperationError`, `NoWorkloadError`; `NotHeldError` when the request ID is of a lease
        that is over; `BundleSplitError` when the database's trust bundle does not follow from the
        one that this client trusts. A release that fails on leaving is logged: the lease ends by
        itself.
        """
        self._check_usable()
        _check_seconds("ttl", ttl, at_least=0.001)
        if timeout is not None:
            _check_seconds("timeout", timeout, at_least=0.0)
        request_id = f"req-{uuid.uuid4()}" if request_id is None else request_id
        root = operation_root(resource, operation, request_id, payload_text(arguments))
        request = Request(request_id, resource, operation, root, continues_root, round(ttl * 1000))
        lease = acquire(self._database, request, timeout)
        try:
            yield lease
        finally:
            try:
                lease.release()
            except Exception as error:
                _log.warning("%r was not released, it ends by itself: %s", lease, error)

    def apply(self, conn: Connection, grant: str | Lease, segment: int, payload: object) -> Verdict:
        """Call `fenced_apply` in the transaction that the caller has open on `conn`.

        Never commits, and returns the verdict also when it refuses: commit then, so that the
        evidence stays, and call `verdict.require()` for an exception. Write only where
        `verdict.lets_write`: after ACCEPTED, and in shadow after WOULD_REFUSE.
        grant: the token, or a `Lease`. segment: 1, 2, 3, ... within the fence.

        Raises `OwnershipUnknownError` and `NotHeldError` for a `Lease` that may not be used now,
        `InvalidArgumentError` if no transaction can be open on `conn`, `PayloadError`,
        `BundleSplitError`, and what the database raises.
        """
        self._check_usable()
        if type(segment) is not int or segment < 1:
            raise errors.InvalidArgumentError(f"segment must be an int from 1 on, not {segment!r}")
        text = payload_text(payload)
        if isinstance(grant, Lease):
            grant.check()
            grant = grant.token
        try:
            claims = self._verified(grant)
        except errors.TokenRefusedError as refused:
            return Verdict(
                refused.verdict,
                reason=refused.reason,
                explanation="the client's own check failed; the database was not asked",
                segment_seq=segment,
                payload_digest=payload_digest(text),
            )
        return run_within(
            conn,
            protocol.apply_within(
                protocol.Segment(
                    token=grant,
                    lease=claims.lease,
                    resource=claims.resource,
                    operation_root=claims.operation_root,
                    number=segment,
                    payload=text,
                    payload_digest=payload_digest(text),
                ),
                monotonic,
            ),
        )

    def _verified(self, token: str) -> Grant:
        """The grant in a token; of a key that is unknown, by the bundle that is in force now."""
        try:
            return self._database.verifier.verify(token)
        except errors.TokenRefusedError as refused:
            if refused.verdict != "UNKNOWN_KEY" or not self._database.follow_bundle():
                raise
        return self._database.verifier.verify(token)

    def position(self, resource: str) -> Position:
        """Where the receipts of a resource end."""
        self._check_usable()
        session = self._database.session()
        try:
            return session.run(protocol.position(resource))
        finally:
            self._database.put_back(session)

    def _check_usable(self) -> None:
        self._database.refuse_fork()
        if self._closed:
            raise errors.HandleClosedError("this Fence is closed")


def _check_seconds(name: str, value: float, at_least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise errors.InvalidArgumentError(f"{name} must be a number of seconds, not {value!r}")
    if not at_least <= value < 2**40:
        raise errors.InvalidArgumentError(f"{name} is out of range: {value!r} seconds")
