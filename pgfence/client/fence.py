"""The way in: `connect` to a guarded database, `hold` a resource."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

import psycopg

from pgfence import coordinators
from pgfence.client import protocol
from pgfence.client.base import BaseFence, check_taking_up, reach
from pgfence.client.database import arranged
from pgfence.client.lease import Lease, Tx
from pgfence.clock import moment, monotonic
from pgfence.drivers.psycopg import Connection, Session, run_within
from pgfence.errors import MutationUnknownError
from pgfence.model.outcome import Coordinates, Outcome
from pgfence.model.receipt import Position, Receipt
from pgfence.model.verdict import Verdict

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy import orm

    from pgfence.drivers.sqlalchemy import Caller

    _Orm = TypeVar("_Orm", bound=orm.Session)

_log = logging.getLogger("pgfence.client")


@overload
def connect(
    database: str,
    *,
    registry: str | None = None,
    coordinator: str = "postgres",
    bundle_digest: str | None = None,
    prepare_threshold: int | None = 5,
) -> "Fence": ...


@overload
def connect(
    database: "sqlalchemy.Engine",
    *,
    registry: str | None = None,
    coordinator: str = "postgres",
    bundle_digest: str | None = None,
) -> "Fence[sqlalchemy.Connection]": ...


@overload
def connect(
    database: "orm.sessionmaker[_Orm]",
    *,
    registry: str | None = None,
    coordinator: str = "postgres",
    bundle_digest: str | None = None,
) -> "Fence[_Orm]": ...


def connect(
    database: Any,
    *,
    registry: str | None = None,
    coordinator: str = "postgres",
    bundle_digest: str | None = None,
    prepare_threshold: int | None = 5,
) -> "Fence[Any]":
    """Reach a guarded database, as a login role that is in pgfence_app and in a workload.

    database: a DSN, and work functions get a psycopg connection; or a SQLAlchemy Engine of
    postgresql+psycopg, and they get a Connection; or a sessionmaker, and they get a Session.
    registry: the DSN of the registry's database, where that is another one. Warns if the clocks of
    the two differ by more than is tolerated.
    coordinator: who says whose turn it is, as the registry has it: `postgres`, or the URL of a lock
    service, such as `etcd://host:2379` (docs/coordinators.md).
    bundle_digest: SHA-256 in hex of a trust bundle that this client trusts: the one in force, or
    an earlier one from which that follows by the signatures of its root keys. By default the client
    trusts the one that is in force when it connects; from then on it accepts only what follows from
    it. prepare_threshold: as in psycopg, for a DSN. Behind a pooler nothing is prepared, whatever
    it says; for an Engine see docs/drivers.md.

    Raises `SchemaVersionError` (and says what to run), `BundleSplitError` when the bundle in force
    does not follow from the one named, `TrustRefusedError`, `NoWorkloadError`, `LockServiceError`
    when the coordinator's client library is missing, `InvalidArgumentError` for a coordinator or an
    Engine that will not do or a registry that is not elsewhere, and what psycopg or SQLAlchemy
    raises.
    """
    make: Callable[[], Session]
    if isinstance(database, str):
        dsn = database

        def make() -> Session:
            return Session(dsn, prepare_threshold=prepare_threshold)
    else:
        # Importing it takes longer than all the rest; whoever has an Engine has done so.
        from pgfence.drivers import sqlalchemy as driver

        make = driver.sessions(database)
    claimant = coordinators.claimant(coordinator)
    makers = [make]
    if registry is not None:
        makers.append(lambda: Session(registry, prepare_threshold=prepare_threshold))
    sessions = [maker() for maker in makers]
    try:
        found, tolerance = sessions[0].run(reach(bundle_digest, *sessions[1:]))
    except BaseException:
        for session in sessions:
            session.close()
        raise
    return Fence(arranged(makers, sessions, found, claimant, tolerance))


class Fence(BaseFence[Session], Generic[Tx]):
    """A guarded database as one process sees it; made by `connect`. Threads may share it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections. Leases that are held live on with their own."""
        self._close()

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
        take_up: bool = False,
        timeout: float | None = None,
        acknowledged: Iterable[Receipt] = (),
    ) -> Iterator[Lease[Tx]]:
        """Acquire a resource, renew in the background, and release it when the block is left.

        operation: the class of work, which the policy must allow. ttl: seconds that the lease lasts
        without renewal. arguments: what distinguishes this operation, as in `payload_text`; part of
        the operation root. request_id: asking again with the same one gives the same grant (R34),
        made up by default. continues_root: the root of the operation that this one takes up, see
        `position`. take_up: find that root, and ask again, behind those who wait, if another worker
        did something meanwhile. timeout: seconds to wait for the resource; None waits for ever, 0
        asks once. A grant that is decided gets three seconds longer to be signed. acknowledged:
        receipts of the resource that the caller has kept; what this `Fence` has seen itself it
        remembers.

        With the registry elsewhere the `timeout` is also for what the new owner waits for then, the
        open transaction of an earlier one; a second is given to it at least (docs/registry.md).

        With a lock service the resource is waited for there, and the lease ends no later than this
        process's session there.

        Raises `AcquireTimeoutError`, `ClaimLostError` and `LockServiceError` (of the lock service),
        `WrongCoordinatorError`, `InvalidArgumentError`, `RequestConflictError`, `PausedError`,
        `WrongOperationError`, `NoWorkloadError`; `NotHeldError` when the request ID is of a lease
        that is over; `BundleSplitError` when the database's trust bundle does not follow from the
        one that this client trusts; `AcknowledgedSegmentsLostError` when the database has lost
        segments that it acknowledged (R47), see `accept_loss`. A release that fails on leaving is
        logged: the lease ends by itself.
        """
        if take_up:
            check_taking_up(request_id, continues_root)
            hold = partial(
                self.hold,
                resource,
                operation=operation,
                ttl=ttl,
                arguments=arguments,
                acknowledged=tuple(acknowledged),
            )
            with self._take_up(resource, timeout, hold) as taken_up:
                yield taken_up
            return
        wanted = self._request(
            resource,
            operation,
            ttl,
            arguments,
            request_id,
            continues_root,
            timeout,
            acknowledged,
        )
        until = moment(timeout)
        lease: Lease[Tx] = Lease.acquire(self._database, wanted, timeout)
        try:
            lease.take_over(until)
            yield lease
        finally:
            try:
                lease.release()
            except Exception as error:
                _log.warning("%r was not released, it ends by itself: %s", lease, error)

    @contextmanager
    def _take_up(
        self,
        resource: str,
        timeout: float | None,
        hold: Callable[..., AbstractContextManager[Lease[Tx]]],
    ) -> Iterator[Lease[Tx]]:
        """Hold it with the root of the last segment; ask again if there are later ones by then."""
        until = moment(timeout)
        self._check_usable()
        with self._database.lent() as session:
            earlier = session.run(self._written_root(resource, until))
        while True:
            left = None if timeout is None else max(0.0, until - monotonic())
            with hold(continues_root=earlier, timeout=left) as lease:
                latest = lease._in_turn(self._written_root(resource, until))
                if latest == earlier:
                    yield lease
                    return
            earlier = latest

    def apply(
        self, conn: "Connection | Caller", grant: str | Lease[Any], segment: int, payload: object
    ) -> Verdict:
        """Call `fenced_apply` in the transaction that the caller has open on `conn`.

        conn: a psycopg connection, a SQLAlchemy Connection, Session or scoped_session. A Session
        flushes nothing because of the call, so what is pending is written after it.
        Never commits, and returns the verdict also when it refuses: commit then, so that the
        evidence stays, and call `verdict.require()` for an exception. Write only where
        `verdict.lets_write`: after ACCEPTED, and in shadow after WOULD_REFUSE.
        grant: the token, or a `Lease`. segment: 1, 2, 3, ... within the fence.

        Raises `OwnershipUnknownError` and `NotHeldError` for a `Lease` that may not be used now,
        `InvalidArgumentError` if no transaction can be open on `conn`, `PayloadError`,
        `BundleSplitError`, and what the database raises.
        """
        token = self._token(grant, segment)
        verifier = self._database.verifier
        if verifier.lacks_key(token):
            with self._database.lent() as session:
                session.run(verifier.follow())
        steps = self._apply_within(grant, segment, payload)
        if isinstance(conn, psycopg.Connection):
            return run_within(conn, steps)
        from pgfence.drivers import sqlalchemy as driver

        return driver.run_within(conn, steps)

    def reconcile(
        self, unknown: MutationUnknownError | Coordinates, *, grant: str | Lease[Any] | None = None
    ) -> Outcome:
        """What became of a segment whose COMMIT was not answered (R45), as far as can be proven.

        unknown: the error, or its `coordinates`, which may come from a process that is gone.
        grant: a newer grant of the resource that this process holds: it raises the fence, so that
        a segment that is absent cannot come any more. Without one, and while nobody has written
        under a newer fence, an absent segment is UNRESOLVED: who still holds its lease applies it
        again. Waits for a transaction that is open on the resource.

        Raises `InvalidArgumentError` for a grant of another resource, and what the database raises.
        """
        self._check_usable()
        with self._database.lent() as session:
            return session.run(self._reconcile(unknown, grant))

    def position(self, resource: str) -> Position:
        """Where the receipts of a resource end."""
        self._check_usable()
        with self._database.lent() as session:
            return session.run(protocol.position(resource))
