"""A resource that this process holds: apply segments, renew in the background, release."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf
from typing import Any

from pgfence import errors
from pgfence.client import protocol
from pgfence.client.database import Database, monotonic
from pgfence.drivers.psycopg import Connection, Session
from pgfence.model.grant import Grant
from pgfence.model.lease import Ownership, State
from pgfence.model.payload import payload_digest, payload_text
from pgfence.model.receipt import Position, Receipt
from pgfence.model.verdict import Verdict

_log = logging.getLogger("pgfence.client")


class Belief:
    """What this process believes of its lease; for several threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ownership = Ownership()
        self._changed = threading.Condition()

    def change(self, move: protocol.Move) -> Ownership:
        """Replace the ownership by what `move` makes of it now."""
        with self._changed:
            before, now = self._ownership, monotonic()
            self._ownership = move(before, now)
            if self._ownership.state is not before.state:
                _log_move(self._name, before, self._ownership)
                self._changed.notify_all()
            return self._ownership

    def now(self) -> Ownership:
        """The ownership as the clock has it."""
        return self.change(Ownership.at)

    def wait_while(self, state: State, seconds: float) -> None:
        """Return when the state is another one, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._ownership.state is not state, seconds)


def _log_move(name: str, before: Ownership, after: Ownership) -> None:
    worse = after.state in (State.OWNERSHIP_UNKNOWN, State.EXPIRED)
    _log.log(
        logging.WARNING if worse else logging.DEBUG,
        "%s: %s -> %s%s",
        name,
        before.state,
        after.state,
        f" ({after.reason})" if after.reason else "",
    )


def acquire(database: Database, request: protocol.Request, timeout: float | None) -> "Lease":
    """Ask for a resource and wait for it; see `Fence.hold`."""
    ttl = request.ttl_ms / 1000
    wake = threading.Event()

    def nap(seconds: float) -> None:
        if wake.wait(seconds):
            wake.clear()

    session = database.session(connect_timeout=ttl / 3, nap=nap)
    answer = None
    try:
        answer = session.run(protocol.acquire(request, timeout, monotonic))
        database.follow_bundle(session)
        grant = _checked(database, request, answer)
    except BaseException as error:
        if answer is not None or not isinstance(error, Exception):
            _withdraw(session, request)
        database.put_back(session)
        raise
    return Lease(database, request, answer, grant, session, wake)


def _withdraw(session: Session, request: protocol.Request) -> None:
    """Interrupted: leave the queue, or give back what came, rather than keep others waiting."""
    try:
        session.run(protocol.give_up(request.request_id, monotonic))
    except Exception as error:
        _log.warning("request %s was not withdrawn: %s", request.request_id, error)


def _checked(database: Database, request: protocol.Request, answer: protocol.Answer) -> Grant:
    """The grant in the registry's answer, if it is genuine and what was asked for (R54)."""
    try:
        grant = database.verifier.verify(answer.token or "")
    except errors.TokenRefusedError as refused:
        verdict = Verdict(
            refused.verdict,
            reason=refused.reason,
            explanation="the registry's grant failed this client's own check",
            resource=request.resource,
        )
        raise errors.refusal(verdict) from refused
    wanted = (request.request_id, request.resource, request.operation_root, answer.lease)
    if (grant.request_id, grant.resource, grant.operation_root, grant.lease) != wanted:
        raise errors.PgfenceError(f"the registry's grant is not what {request.request_id} is for")
    return grant


class Lease:
    """A resource that this process holds; made by `Fence.hold`.

    Threads may share it: one segment is applied after the other.
    """

    def __init__(
        self,
        database: Database,
        request: protocol.Request,
        answer: protocol.Answer,
        grant: Grant,
        session: Session,
        wake: threading.Event,
    ) -> None:
        self.grant = grant
        #: The signed grant: what `fenced_apply` takes, in any language.
        self.token = answer.token or ""
        self._database = database
        self._digest = grant.digest
        self._in_shadow = bool(answer.in_shadow)
        self._belief = Belief(f"lease {grant.lease} on {grant.resource}")
        self._belief.change(answer.applied_to)
        self._next_segment = 1
        #: The segment whose COMMIT was sent and not answered, and its payload's digest.
        self._unknown: tuple[int, str] | None = None
        self._applying = threading.Lock()
        self._applier: int | None = None
        self._closed = False
        self._work_session = database.session()
        self._registry_session = session
        self._wake = wake
        self._keeper = threading.Thread(
            target=self._keep, name=f"pgfence {grant.lease}", daemon=True
        )
        self._keeper.start()

    def __repr__(self) -> str:
        return (
            f"<Lease {self.grant.lease} on {self.resource}, fence {self.fence_token}, "
            f"{self._belief.now().state}>"
        )

    @property
    def resource(self) -> str:
        """What is held."""
        return self.grant.resource

    @property
    def fence_token(self) -> int:
        """The grant's fence: every later owner's is higher."""
        return self.grant.fence_token

    @property
    def operation_root(self) -> str:
        """What names this operation; a successor gives it as `continues_root`."""
        return self.grant.operation_root

    @property
    def state(self) -> State:
        """What this process believes now (R41)."""
        return self._belief.now().state

    @property
    def next_segment(self) -> int:
        """The number that the next segment gets."""
        return self._next_segment

    def check(self) -> None:
        """Return if a new effect may start now (R42); in shadow always, with a warning (R28).

        Raises `OwnershipUnknownError` while the registry has not confirmed the lease,
        `NotHeldError` when it is over, `HandleClosedError` and `ForkedError`.
        """
        self._check_usable()
        ownership = self._belief.now()
        if ownership.may_start(monotonic()):
            return
        if self._in_shadow:
            _log.warning("in shadow, so let through: %r may not start anything new", self)
            return
        if ownership.state is State.OWNERSHIP_UNKNOWN:
            raise errors.OwnershipUnknownError(
                f"the registry has not confirmed the lease on {self.resource}: nothing new starts"
            )
        raise errors.NotHeldError(
            Verdict(
                "NOT_HELD",
                reason=ownership.reason,
                explanation=f"this process knows that its lease on {self.resource} is over",
                resource=self.resource,
                fence_token=self.fence_token,
            )
        )

    def wait_held(self, timeout: float | None = None) -> None:
        """Wait while ownership is unknown, until the registry confirms it.

        Raises `OwnershipUnknownError` after `timeout` seconds, and `NotHeldError` when the lease is
        over, which its deadline sees to.
        """
        until = inf if timeout is None else monotonic() + timeout
        while self._belief.now().state is State.OWNERSHIP_UNKNOWN and monotonic() < until:
            patience = min(until, self._belief.now().deadline) - monotonic()
            self._belief.wait_while(State.OWNERSHIP_UNKNOWN, patience)
        self.check()

    def apply(
        self,
        payload: object,
        work: Callable[[Connection], object],
        *,
        segment: int | None = None,
    ) -> Receipt:
        """Commit one segment: `work(tx)` and its receipt, in one transaction (R15).

        payload: says what the segment does, see `payload_text`. work: writes the business rows on
        `tx`, a psycopg connection with an open transaction that it must not end; it runs only if
        the segment is new. Where the segment was applied before, the original receipt comes back.
        segment: by default the one after the last. In shadow a refusal is logged as a warning,
        `work` runs, and `would_refuse` of the receipt names it (R28).

        Raises a `RefusedError` for a refusal, whose evidence is committed first, or in its place
        `BundleSplitError` when that is why; what `work` raised, and `LeaseEndedError`: then nothing
        was written; `MutationUnknownError` when the answer to COMMIT was lost: the same payload may
        be applied again, and nothing else until then; what `check` raises; `PayloadError`.
        """
        text = payload_text(payload)
        digest = payload_digest(text)
        with self._one_at_a_time():
            self.check()
            number = self._number(segment, digest)
            before, self._unknown = self._unknown, (number, digest)
            try:
                verdict = self._work_session.run(
                    protocol.apply(
                        self._segment(number, text, digest), self._belief.change, monotonic
                    ),
                    work,
                )
            except errors.MutationUnknownError:
                self._wake.set()
                raise
            except Exception as error:
                self._unknown = before
                if isinstance(error, errors.LeaseEndedError):
                    self._wake.set()
                raise
            if not verdict.accepted:
                self._unknown = before
                self._learn_from(verdict)
                if verdict.would_refuse is None:
                    raise errors.refusal(verdict)
                # The segment was not accepted, so the next one gets its number.
                self._unknown = None
                return self._receipt(verdict, number, digest)
            self._unknown = None
            self._next_segment = max(self._next_segment, number + 1)
            return self._receipt(verdict, number, digest)

    def advance(self) -> Verdict:
        """Raise the fence without writing, so that earlier owners are refused from now on (R21).

        Raises a `RefusedError` for a refusal, and what `check` raises.
        """
        with self._one_at_a_time():
            self.check()
            verdict = self._work_session.run(protocol.advance(self.token))
            self._learn_from(verdict)
            return verdict.require()

    def position(self) -> Position:
        """Where the receipts of the resource end: ask before the first segment."""
        with self._one_at_a_time():
            return self._work_session.run(protocol.position(self.resource))

    def release(self) -> None:
        """Give the lease back; waits for a segment that is being applied. Again: nothing.

        The handle is of no more use, also when the registry could not be told: the lease then ends
        by itself. Raises what the database raises.
        """
        if self._closed:
            return
        with self._one_at_a_time():
            self._closed = True
            self._belief.change(Ownership.released)
            self._wake.set()
            self._keeper.join()
            try:
                self._registry_session.run(protocol.release(self.grant.lease, monotonic))
            finally:
                self._database.put_back(self._registry_session)
                self._database.put_back(self._work_session)

    def _keep(self) -> None:
        """The background thread: renew until the lease is over."""
        ttl_ms = self.grant.ttl_ms
        steps = protocol.keep(self.grant.lease, ttl_ms, self._belief.change, monotonic)
        try:
            self._registry_session.run(steps)
        except Exception:
            _log.exception("lease %s is not renewed any more", self.grant.lease)
            self._belief.change(Ownership.doubted)

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        self._check_usable()
        me = threading.get_ident()
        if self._applier == me:
            raise errors.InvalidArgumentError("the work function must not use its own Lease")
        with self._applying:
            self._applier = me
            try:
                self._check_usable()
                yield
            finally:
                self._applier = None

    def _check_usable(self) -> None:
        self._database.refuse_fork()
        if self._closed:
            raise errors.HandleClosedError(f"the lease on {self.resource} was released")

    def _number(self, segment: int | None, digest: str) -> int:
        if segment is not None and (type(segment) is not int or segment < 1):
            raise errors.InvalidArgumentError(f"segment must be an int from 1 on, not {segment!r}")
        if self._unknown is None:
            return segment or self._next_segment
        number, unknown_digest = self._unknown
        if (segment or number, digest) != (number, unknown_digest):
            raise errors.MutationUnknownError(
                self.resource, self.operation_root, number, unknown_digest
            )
        return number

    def _segment(self, number: int, text: str, digest: str) -> protocol.Segment:
        return protocol.Segment(
            token=self.token,
            lease=self.grant.lease,
            resource=self.resource,
            operation_root=self.operation_root,
            number=number,
            payload=text,
            payload_digest=digest,
        )

    def _receipt(self, verdict: Verdict, number: int, digest: str) -> Receipt:
        fields: dict[str, Any] = {
            "digest": verdict.receipt or "",
            "accepted_at": verdict.accepted_at or datetime.now(UTC),
        }
        return Receipt(
            resource=self.resource,
            fence_token=self.fence_token,
            segment_seq=number,
            operation_root=self.operation_root,
            grant_digest=self._digest,
            payload_digest=digest,
            replayed=verdict.verdict == "REPLAYED",
            would_refuse=verdict.would_refuse,
            **fields,
        )

    def _learn_from(self, verdict: Verdict) -> None:
        """A refusal may say that the lease is over, or that another trust bundle is in force."""
        name = verdict.would_refuse or verdict.verdict
        if name == "STALE_OWNER":
            self._belief.change(lambda o, now: o.ended(now, "SUPERSEDED"))
        elif name == "NOT_HELD" and verdict.reason == "RELEASED":
            self._belief.change(Ownership.released)
        elif name == "NOT_HELD":
            self._belief.change(lambda o, now: o.ended(now, verdict.reason or "EXPIRED"))
        elif verdict.verdict in ("UNKNOWN_KEY", "REVOKED_EPOCH"):  # in shadow nothing hangs on it
            try:
                self._database.follow_bundle(self._work_session)
            except errors.BundleSplitError:
                raise
            except Exception as error:
                _log.warning("%r: the trust bundle was not followed: %s", self, error)
