"""What a fence and a lease are, whether threads or tasks use them. No I/O, and nothing waits.

Whatever must ask the database is a generator of steps, as in `protocol`; `Fence` and `Lease`
drive them with a thread, `AsyncFence` and `AsyncLease` with a task.
"""

import inspect
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf, isfinite
from typing import Any, Generic

from pgfence import errors, observe
from pgfence.client import protocol, segments
from pgfence.client.acquiring import Acquired, outside, refuse_lost
from pgfence.client.belief import Belief
from pgfence.client.database import Database, S
from pgfence.client.protocol import (
    Answer,
    Introduction,
    On,
    Proof,
    Request,
    Segment,
    Sleep,
    Steps,
)
from pgfence.clock import monotonic
from pgfence.model.canonical import MAX_INTEGER
from pgfence.model.clocks import Difference, Reading
from pgfence.model.grant import Grant, operation_root
from pgfence.model.lease import Ownership, State
from pgfence.model.outcome import Coordinates, Outcome
from pgfence.model.payload import payload_digest, payload_text
from pgfence.model.receipt import Receipt
from pgfence.model.verdict import Verdict

_log = logging.getLogger("pgfence.client")

#: Seconds that connecting may take for noting that an outcome is unknown.
_REPORT = 2.0
#: Tries to take over after a resource was promoted or restored, and seconds between two looks.
_ATTEMPTS, _LOOK = 3, 0.05


class BaseFence(Generic[S]):
    """A guarded database as one process sees it."""

    def __init__(self, database: Database[S]) -> None:
        self._database = database
        self._closed = False

    def accept_loss(self, error: errors.AcknowledgedSegmentsLostError) -> None:
        """Forget the segments that were acknowledged and lost, so that work on them may go on.

        From here on what the database has is right. It may still be that they took effect outside.
        """
        self._check_usable()
        self._database.acknowledged.forget(error.lost)

    def _close(self) -> None:
        self._database.refuse_fork()
        self._closed = True
        self._database.close()

    def _check_usable(self) -> None:
        self._database.refuse_fork()
        if self._closed:
            raise errors.HandleClosedError(f"this {type(self).__name__} is closed")

    def _request(
        self,
        resource: str,
        operation: str,
        ttl: float,
        arguments: object,
        request_id: str | None,
        continues_root: str,
        timeout: float | None,
        acknowledged: Iterable[Receipt],
    ) -> Request:
        """What `hold` asks the registry for, once it has remembered what the caller knows."""
        self._check_usable()
        _check_seconds("ttl", ttl, at_least=0.001)
        if timeout is not None:
            _check_seconds("timeout", timeout, at_least=0.0)
        if self._database.elsewhere and ttl <= 3 * self._database.tolerance:
            raise errors.InvalidArgumentError(
                f"ttl must be more than {3 * self._database.tolerance:g} seconds: the clocks of "
                "registry and database may differ by a third of that, which is taken off each proof"
            )
        request_id = f"req-{uuid.uuid4()}" if request_id is None else request_id
        known = tuple(acknowledged)
        if any(receipt.resource != resource for receipt in known):
            raise errors.InvalidArgumentError(
                f"acknowledged has receipts that are not {resource}'s"
            )
        self._database.acknowledged.add(known)
        return Request(
            request_id=request_id,
            resource=resource,
            operation_class=operation,
            operation_root=operation_root(resource, operation, request_id, payload_text(arguments)),
            continues_root=continues_root,
            ttl_ms=round(ttl * 1000),
            coordinator=self._database.claimant.capabilities.name,
        )

    def _written_root(self, resource: str, until: float) -> Steps[str]:
        """The operation of the resource's last segment, or "", for `hold(take_up=True)`."""
        at = yield from protocol.position(resource, protocol.limit(until - monotonic()))
        return at.written_root or ""

    def _token(self, grant: "str | BaseLease[Any]", segment: int) -> str:
        """The token of what `apply` was given, which may be used now."""
        self._check_usable()
        check_counts(segment=segment)
        if isinstance(grant, BaseLease):
            grant.check()
            return grant.token
        if not isinstance(grant, str):
            raise errors.InvalidArgumentError(f"grant must be a Lease or a token, not {grant!r}")
        return grant

    def _apply_within(
        self, grant: "str | BaseLease[Any]", segment: int, payload: object
    ) -> Steps[Verdict]:
        """`apply` in the caller's transaction, after the client's own check (R54)."""
        shown = Proof() if self._database.elsewhere else None
        if isinstance(grant, BaseLease):
            shown, grant = grant.shown, grant.token
        text = payload_text(payload)
        digest = payload_digest(text)
        try:
            claims = self._database.verifier.verify(grant)
        except errors.TokenRefusedError as refused:
            return Verdict(
                refused.verdict,
                reason=refused.reason,
                explanation="the client's own check failed; the database was not asked",
                segment_seq=segment,
                payload_digest=digest,
            )
        wanted = _segment(claims, grant, shown, segment, text, digest)
        verdict = yield from protocol.apply_within(wanted, monotonic)
        observe.verdict(verdict)
        return verdict

    def _reconcile(
        self,
        unknown: errors.MutationUnknownError | Coordinates,
        grant: "str | BaseLease[Any] | None",
    ) -> Steps[Outcome]:
        """What became of a segment; see `Fence.reconcile`."""
        if isinstance(unknown, errors.MutationUnknownError):
            unknown = unknown.coordinates
        proof = None
        if isinstance(grant, BaseLease):
            shown, grant = grant.shown, grant.token
            proof = shown.token if shown else None
        outcome = yield from protocol.reconcile(unknown, grant, proof)
        observe.reconciled(outcome.outcome)
        return outcome


def reach(
    bundle_digest: str | None, registry: S | None = None
) -> Steps[tuple[Introduction, float]]:
    """What the first session learns; see `connect`. registry: a session of the other database.

    The second value is the tolerance for the difference of the two clocks, in seconds.
    """
    found = yield from protocol.introduce(monotonic, bundle_digest)
    if registry is None:
        return found, 0.0
    arranged = yield from protocol.arrangement()
    if arranged.registry_is_local:
        raise errors.InvalidArgumentError(
            "the registry of this database is in it: leave out registry=, or let the DBA run "
            "pgfence.use_registry_elsewhere()"
        )
    yield On(registry, protocol.introduce(monotonic))
    theirs: Reading = yield On(registry, protocol.read_clock(monotonic))
    ours = yield from protocol.read_clock(monotonic)
    difference, tolerance = Difference.of(theirs, ours), arranged.clock_tolerance_ms / 1000
    exceeds = difference.exceeds(tolerance)
    _log.log(
        logging.WARNING if exceeds else logging.DEBUG,
        "the registry's clock is ahead of that of %s by %s, %s ms are tolerated%s",
        arranged.audience,
        difference,
        arranged.clock_tolerance_ms,
        ": status proofs will be refused" if exceeds else "",
    )
    return found, tolerance


class BaseLease(Generic[S]):
    """A resource that this process holds.

    One segment is applied after the other: who runs `_apply` and its like has the turn.
    """

    def __init__(self, database: Database[S], acquired: Acquired, registry_session: S) -> None:
        answer, self.grant, self._claim, self._proofs = acquired
        #: The signed grant: what `fenced_apply` takes, in any language.
        self.token = answer.token or ""
        self._database = database
        self._digest = self.grant.digest
        self._in_shadow = bool(answer.in_shadow)
        self._belief = Belief(
            f"lease {self.grant.lease} on {self.resource}", self._claim.standing, self._moved
        )
        self._next_segment = 1
        #: The first segment whose COMMIT was sent and not answered, and the payload digests of it
        #: and of those that were applied with it.
        self._unknown: tuple[int, tuple[str, ...]] | None = None
        self._turn_of: object = None
        self._closed = False
        #: It was still ours when it was released, so it cannot be lost any more.
        self._given_back = False
        self._registry_session = registry_session
        self._work_session = database.session()
        self._belief.change(answer.applied_to)
        self._claim.listen(self._claim_changed)

    def _claim_changed(self) -> None:
        """The session at the lock service stands otherwise than before."""
        self._belief.now()
        self._registry_session.wake()

    def _moved(self) -> None:
        """Wake whoever waits for another state."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.grant.lease} on {self.resource}, "
            f"fence {self.fence_token}, {self.state}>"
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
    def shown(self) -> Proof | None:
        """The latest status proof, where the registry is in another database (R13)."""
        return self._proofs.latest if self._proofs else None

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
        if (shown := self.shown) and monotonic() >= shown.good_until:
            self._belief.change(Ownership.doubted)
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

    def _check_usable(self) -> None:
        self._database.refuse_fork()
        if self._closed:
            raise errors.HandleClosedError(f"the lease on {self.resource} was released")

    def _check_turn(self, *whose: object) -> None:
        """Raise if the one who asks, known by any of `whose`, would wait for itself."""
        self._check_usable()
        if self._turn_of in whose:
            raise errors.InvalidArgumentError("the work function must not use its own lease")

    @contextmanager
    def _turn(self, who: object) -> Iterator[None]:
        """The block has the turn; whoever waited for it may find the lease released."""
        self._turn_of = who
        try:
            self._check_usable()
            yield
        finally:
            self._turn_of = None

    def _doubt(self, until: float) -> float:
        """Seconds for which `wait_held` is still to wait; 0 when ownership is not in doubt."""
        if self._belief.now().state is not State.OWNERSHIP_UNKNOWN:
            return 0.0
        return self._left(until)

    def _left(self, until: float) -> float:
        """Seconds for which to wait for the end of the lease, or `until`; 0 when it is over."""
        ownership = self._belief.now()
        if ownership.is_final:
            return 0.0
        return max(0.0, min(until, ownership.deadline) - monotonic())

    def _is_lost(self) -> bool:
        """Whether the lease is over, and not because it was released here."""
        self._database.refuse_fork()
        return self._belief.now().is_final and not self._given_back

    def _must_stop(self) -> bool:
        """Whether what is going on is to be undone; in shadow never (R28)."""
        return not self._in_shadow and self._is_lost()

    def _check_not_lost(self) -> None:
        """Raise `NotHeldError` when the lease is lost; doubt is none."""
        self._check_usable()
        if self._must_stop():
            self.check()

    def _check_told(self, function: Callable[[], object]) -> None:
        """Raise if `function` cannot be told of the loss by calling it."""
        self._check_usable()
        if inspect.iscoroutinefunction(function):
            raise errors.InvalidArgumentError(
                f"on_lost calls a function, and {function!r} must be awaited",
                hint="Give a function that is done when it returns, such as a task's cancel.",
            )

    def _call_lost(self, function: Callable[[], object]) -> None:
        """Say that the lease is lost to somebody who wanted to be told."""
        try:
            if unfinished := _unfinished(function()):
                raise errors.InvalidArgumentError(f"it returned a {unfinished} that nobody has run")
        except Exception:
            _log.exception("%r: what was to be called on its loss failed", self)

    def _stop_work(self) -> None:
        """The lease is lost, so work does not run on; in shadow it may (R28)."""
        if not self._in_shadow:
            self._work_session.stop_work()

    def _apply(self, payload: object, segment: int | None) -> Steps[Receipt]:
        """Commit one segment; see `Lease.apply`."""
        (receipt,) = yield from self._apply_many([payload], segment, lambda _: None)
        return receipt

    def _apply_many(
        self,
        payloads: Sequence[object],
        segment: int | None,
        begins: Callable[[Sequence[Verdict]], object],
    ) -> Steps[list[Receipt]]:
        """Commit segments in one transaction; see `Lease.apply_many`.

        segment: the number of the first. begins: called with their verdicts before work.
        """
        self.check()
        texts = [payload_text(payload) for payload in payloads]
        digests = tuple(map(payload_digest, texts))
        first = self._number(segment, digests)
        shown = self.shown
        wanted = [
            _segment(self.grant, self.token, shown, number, text, digest)
            for number, (text, digest) in enumerate(zip(texts, digests, strict=True), first)
        ]
        before = self._unknown

        def in_doubt() -> None:
            self._unknown = first, digests

        try:
            verdicts = yield from protocol.apply(
                wanted, self._belief.change, monotonic, self._must_stop, begins, in_doubt
            )
        except errors.MutationUnknownError:
            self._registry_session.wake()
            for one in wanted:
                observe.mutation_unknown(self.resource, self.operation_root, one.number)
            yield from self._report(wanted)
            raise
        except Exception as error:
            self._unknown = before
            if isinstance(error, errors.LeaseEndedError):
                self._registry_session.wake()
            raise
        for verdict in verdicts:
            observe.verdict(verdict)
            yield from self._learn_from(verdict)
            verdict.require()
        self._unknown = None
        receipts = [self._receipt(v, s) for v, s in zip(verdicts, wanted, strict=True)]
        accepted = [receipt for receipt in receipts if receipt.would_refuse is None]
        # In shadow, what was not accepted leaves its number to the next one.
        self._next_segment = max([self._next_segment, *(r.segment_seq + 1 for r in accepted)])
        self._database.acknowledged.add(accepted)
        return receipts

    def _stand(self) -> Steps[tuple[int, int]]:
        """How many segments of the operation stand, and how many of them earlier owners applied.

        Raises the fence first, so that this cannot change any more.
        """
        yield from self._advance()
        at = yield from protocol.position(self.resource)
        if at.operation_root != self.operation_root:  # in shadow: the fence was not raised
            return 0, 0
        self._next_segment = max(self._next_segment, at.last_segment + 1)
        return at.total_segments, at.total_segments - at.last_segment

    def _standing(self, after: int, earlier: int) -> Steps[list[tuple[int, str]]]:
        """Numbers and payload digests of segments that stand, numbered through (R46).

        earlier: how many there are of earlier owners.
        """
        rows = yield from protocol.operation_receipts(self.resource, self.operation_root, after)
        if self._unknown is not None:
            number, digests = self._unknown
            if (number + earlier, digests[0]) in rows:
                self._unknown = None
        return rows

    def _conflict(self, segment: segments.Segment, earlier: int) -> Steps[None]:
        """Raise `PayloadConflictError`, of an own segment with its evidence in quarantine (R12)."""
        if self._in_shadow:
            _log.warning("in shadow, so let through: segment %s stands otherwise", segment.number)
            return
        if segment.number > earlier:
            yield from self._apply(segment.payload, segment.number - earlier)
        raise errors.PayloadConflictError(
            Verdict(
                "PAYLOAD_CONFLICT",
                explanation=f"an earlier owner applied segment {segment.number} of this operation "
                f"on {self.resource} with another payload: the items are others, or in another "
                "order, or continues_root names another kind of work",
                resource=self.resource,
                payload_digest=payload_digest(segment.payload),
            )
        )

    def _own_number(self, segment: segments.Segment, earlier: int) -> int | None:
        """The number of an operation's segment under this fence.

        In shadow the next one, because what was not accepted leaves its number to it.
        """
        return None if self._in_shadow else segment.number - earlier

    def _report(self, wanted: Sequence[Segment]) -> Steps[None]:
        """Let others see what is unknown (R44), without keeping the caller long from knowing it."""
        session = self._work_session
        usual, session.connect_timeout = session.connect_timeout, _REPORT
        try:
            yield from protocol.report(wanted)
        finally:
            session.connect_timeout = usual

    def _advance(self, until: float = inf) -> Steps[Verdict]:
        """Raise the fence without writing; see `Lease.advance`."""
        self.check()
        proof = shown.token if (shown := self.shown) else None
        verdict = yield from protocol.advance(self.token, self._must_stop, monotonic, proof, until)
        yield from self._learn_from(verdict)
        return verdict.require()

    def _take_over(self, until: float = inf) -> Steps[None]:
        """With the registry elsewhere: advance, so that what is read from here on cannot change
        any more (R21). Waits for a transaction of the old owner; the lease is renewed meanwhile.

        Raises `AcquireTimeoutError` when it has waited until then.
        """
        if self._proofs is None:
            return
        attempts = 0
        while True:
            try:
                yield from self._advance(until)
            except errors.AcquireTimeoutError:
                if monotonic() >= until:
                    raise
            except (errors.StaleStatusError, errors.RebindRequiredError):
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise
            else:
                return
            yield Sleep(_LOOK)
            while self.state is State.OWNERSHIP_UNKNOWN:
                yield Sleep(_LOOK)

    def _keep(self) -> Steps[None]:
        """Renew until the lease is over; then its key at the coordinator goes too, as a block that
        goes on would keep whoever is next waiting for it.
        """
        lease, ttl_ms = self.grant.lease, self.grant.ttl_ms
        try:
            yield from protocol.keep(
                lease,
                ttl_ms,
                self._belief.change,
                monotonic,
                self._claim.standing,
                self._renewal if self._proofs else None,
            )
        except Exception:
            _log.exception("lease %s is not renewed any more", lease)
            self._belief.change(Ownership.doubted)
        if self._is_lost():
            yield from outside(self._database, self._claim.release)

    def _renewal(self) -> protocol.Renewal:
        """How the lease is renewed next, where it must be proved as well."""
        proofs = self._proofs
        assert proofs is not None  # noqa: S101 - asked for only then

        def renewed(answer: Answer) -> None:
            self._belief.change(answer.prolonged)

        return protocol.Renewal(
            lambda within: proofs.renew(renewed, within), proofs.latest.good_until
        )

    def _give_up(self) -> None:
        """Nothing new starts from here on, and renewal ends."""
        self._closed = True
        self._given_back = not self._belief.now().is_final
        self._belief.change(Ownership.released)
        self._registry_session.wake()

    def _release(self) -> Steps[None]:
        """Tell the registry, on the session that is no more needed for renewing; then the
        coordinator, so that whoever is next there finds the lease released.
        """
        try:
            yield from protocol.release(self.grant.lease, self.grant.ttl_ms, monotonic)
        except GeneratorExit:
            raise
        except BaseException:
            yield from outside(self._database, self._claim.release)
            raise
        yield from outside(self._database, self._claim.release)

    def _put_back(self) -> None:
        self._database.registry.put_back(self._registry_session)
        if self._is_lost():
            # Who stops its work may come late, and must not meet that of another lease.
            self._work_session.close()
        else:
            self._database.put_back(self._work_session)

    def _number(self, segment: int | None, digests: tuple[str, ...]) -> int:
        """The number of the first segment; none but those that are unknown, while any is (R44)."""
        if segment is not None:
            check_counts(segment=segment)
        if self._unknown is None:
            return segment or self._next_segment
        number, unknown = self._unknown
        both = min(len(digests), len(unknown))
        if (segment or number, digests[:both]) != (number, unknown[:both]):
            raise errors.MutationUnknownError(
                self.resource, self.operation_root, number, unknown[0], unknown[1:]
            )
        return number

    def _receipt(self, verdict: Verdict, segment: Segment) -> Receipt:
        return Receipt(
            resource=self.resource,
            fence_token=self.fence_token,
            segment_seq=segment.number,
            operation_root=self.operation_root,
            grant_digest=self._digest,
            payload_digest=segment.payload_digest,
            digest=verdict.receipt or "",
            accepted_at=verdict.accepted_at or datetime.now(UTC),
            replayed=verdict.verdict == "REPLAYED",
            would_refuse=verdict.would_refuse,
        )

    def _learn_from(self, verdict: Verdict) -> Steps[None]:
        """A refusal may say that the lease is over, that another trust bundle is in force, or
        that this is not the database any more which has acknowledged earlier segments (R47).
        """
        if verdict.accepted:
            return
        name = verdict.would_refuse or verdict.verdict
        if name == "STALE_OWNER":
            self._belief.change(lambda o, now: o.ended(now, "SUPERSEDED"))
        elif name == "NOT_HELD" and verdict.reason == "RELEASED":
            self._belief.change(Ownership.released)
        elif name == "NOT_HELD":
            self._belief.change(lambda o, now: o.ended(now, verdict.reason or "EXPIRED"))
        elif self._proofs is not None and (
            name in ("STALE_STATUS", "REBIND_REQUIRED") or verdict.reason == "STATUS_PROOF"
        ):
            if name == "REBIND_REQUIRED" or verdict.reason == "BEFORE_REBIND":
                self._proofs.only_later()
            self._belief.change(Ownership.doubted)
            self._registry_session.wake()
        elif verdict.verdict in ("UNKNOWN_KEY", "REVOKED_EPOCH"):  # in shadow nothing hangs on it
            try:
                yield from self._database.verifier.follow()
            except errors.BundleSplitError:
                raise
            except Exception as error:
                _log.warning("%r: the trust bundle was not followed: %s", self, error)
        if self._is_lost():
            self._registry_session.wake()
        try:
            yield from refuse_lost(self._database, self.resource, self._in_shadow)
        except errors.AcknowledgedSegmentsLostError as lost:
            raise lost from errors.refusal(verdict)
        except Exception as error:
            _log.warning("%r: whether segments were lost is not known: %s", self, error)


def _segment(
    grant: Grant, token: str, shown: Proof | None, number: int, payload: str, digest: str
) -> Segment:
    return Segment(
        token=token,
        lease=grant.lease,
        resource=grant.resource,
        operation_root=grant.operation_root,
        number=number,
        payload=payload,
        payload_digest=digest,
        proof=shown,
    )


def check_counts(**counts: int) -> None:
    """Raise `InvalidArgumentError` if a number is none to count with."""
    for name, value in counts.items():
        if type(value) is not int or not 1 <= value <= MAX_INTEGER:
            raise errors.InvalidArgumentError(
                f"{name} must be an int from 1 to 2^53 - 1, not {value!r}"
            )


def refuse_unfinished(returned: object) -> None:
    """Raise `InvalidArgumentError` if what a work function returned shows that it has not run, or
    not to its end: the receipt would stand without its rows.
    """
    if unfinished := _unfinished(returned):
        raise errors.InvalidArgumentError(
            f"the work function returned a {unfinished} that nobody has run: nothing was written",
            hint="Give a function that is done when it returns. One that is awaited is for "
            "pgfence.connect_async, and must itself await what it calls; none may yield.",
        )


def _unfinished(returned: object) -> str | None:
    """What a function returned in place of running to its end; it does not run any more."""
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()
    elif not inspect.isasyncgen(returned):
        return None
    return type(returned).__name__


def check_taking_up(request_id: str | None, continues_root: str) -> None:
    """Refuse what `hold(take_up=True)` finds out, or makes up, itself."""
    if request_id is not None or continues_root:
        raise errors.InvalidArgumentError(
            "take_up finds out what to take up, and asks anew when another worker was faster: "
            "leave out request_id and continues_root"
        )


def _check_seconds(name: str, value: float, at_least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise errors.InvalidArgumentError(f"{name} must be a number of seconds, not {value!r}")
    if not at_least <= value < 2**40:
        raise errors.InvalidArgumentError(f"{name} is out of range: {value!r} seconds")
