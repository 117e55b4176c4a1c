"""Asking the registry for a resource, and keeping what it grants."""

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from math import inf
from typing import NamedTuple, Self

from pgfence import errors
from pgfence.client.protocol.steps import (
    SHORTEST_CALL,
    TRY_AGAIN,
    Batch,
    Call,
    Clock,
    Failed,
    Listen,
    Reopen,
    Row,
    Sleep,
    Steps,
    Wait,
    limit,
    reopening,
)
from pgfence.coordinators.protocol import Standing
from pgfence.model.lease import Ownership
from pgfence.model.verdict import Verdict

_log = logging.getLogger("pgfence.client")

Move = Callable[[Ownership, float], Ownership]
#: Replaces the worker's belief by what a move makes of it now, and returns it.
Change = Callable[[Move], Ownership]

#: A serialization failure or a deadlock, or the call was cancelled, or waited too long for a lock:
#: a request is asked again.
_ASK_AGAIN = TRY_AGAIN | {"57014", "55P03"}
#: Pauses, in seconds, between attempts to reach a database that does not answer.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
#: The same where no notification comes, so that a waiter has to look.
_FIRST_LOOK, _LONGEST_LOOK = 0.01, 0.25
#: Seconds that a decided grant gets to be signed.
_SIGNING = 3.0
#: Seconds that a renewal gets at least, also where a third of the lease is less.
_SHORTEST_RENEWAL = 0.25


class Request(NamedTuple):
    """What a worker asks the registry for."""

    request_id: str
    resource: str
    operation_class: str
    operation_root: str
    continues_root: str
    ttl_ms: int
    #: By way of which coordinator (R37).
    coordinator: str = "postgres"


class Answer(NamedTuple):
    """A row of type `pgfence_registry.answer`, and when the question was sent."""

    asked_at: float
    state: str
    request_id: str | None
    resource: str | None
    lease: str | None
    fence_token: int | None
    token: str | None
    grant_digest: str | None
    ttl_ms: int | None
    lease_ends_at: datetime | None
    remaining_ms: int | None
    look_again_ms: int | None
    wake_channel: str | None
    reason: str | None
    #: With the token: refusals of this resource are let through (R28).
    in_shadow: bool | None = None

    @classmethod
    def from_row(cls, row: Row, asked_at: float = inf) -> Self:
        """Read a row of `select * from pgfence_registry.look(...)` and its like."""
        return cls(asked_at, *row)

    @property
    def ends_at(self) -> float:
        """When the lease ends on the clock that `asked_at` is of, at the earliest."""
        return self.asked_at + (self.remaining_ms or 0) / 1000

    def applied_to(self, ownership: Ownership, now: float) -> Ownership:
        """What the registry's word makes of the worker's belief."""
        if self.state == "HELD":
            return ownership.confirmed(now, self.asked_at, (self.remaining_ms or 0) / 1000)
        if self.state == "RELEASED":
            return ownership.released(now)
        return ownership.ended(now, self.state)

    def prolonged(self, ownership: Ownership, now: float) -> Ownership:
        """The same while nothing shows it to the database yet: how long the lease lasts."""
        if self.state == "HELD":
            return ownership.prolonged(now, self.asked_at, (self.remaining_ms or 0) / 1000)
        return self.applied_to(ownership, now)

    def not_held(self) -> errors.NotHeldError:
        """The error that says how this lease ended."""
        return errors.NotHeldError(
            Verdict(
                "NOT_HELD",
                reason=self.state,
                explanation=f"the registry says that request {self.request_id} is {self.state}; "
                "a request ID is granted once",
                resource=self.resource,
                fence_token=self.fence_token,
            )
        )


def ask(call: Call, clock: Clock, within: float | None = None) -> Steps[Answer]:
    """One question to the registry."""
    asked_at = clock()
    (rows,) = yield Batch((call,), within=within)
    return Answer.from_row(rows[0], asked_at)


def request(r: Request) -> Call:
    """Ask for a resource; again and again while the answer is WAIT or SIGNING (R34, R36)."""
    return Call(
        "select * from pgfence_registry.request($1, $2, $3, $4, $5, $6, $7)",
        (
            r.request_id, r.resource, r.operation_class, r.operation_root, r.ttl_ms,
            r.continues_root, r.coordinator,
        ),
    )  # fmt: skip


def _always() -> Standing:
    return Standing.HELD


class _Waiting:
    """Waits for a wake-up so that none is lost: first LISTEN, after which the caller asks again
    (R36). Where notifications do not come, it lets the caller look every so often.
    """

    def __init__(self) -> None:
        self._channel: str | None = None
        self._told = True
        self._look = _FIRST_LOOK

    def reconnected(self) -> None:
        """The connection is a new one, which does not listen."""
        self._channel = None

    def look_soon(self) -> None:
        """What is waited for will not take long."""
        self._look = _FIRST_LOOK

    def wait(self, channel: str | None, seconds: float) -> Steps[None]:
        """Wait at most so long."""
        if channel and channel != self._channel:
            self._told = yield Listen(channel)
            self._channel = channel
        elif self._told:
            yield Wait(seconds)
        else:
            yield Sleep(min(seconds, self._look))
            self._look = min(2 * self._look, _LONGEST_LOOK)


def acquire(
    wanted: Request, timeout: float | None, clock: Clock, standing: Callable[[], Standing] = _always
) -> Steps[Answer]:
    """Ask until the resource is ours: the answer is HELD, with the signed grant.

    standing: how the session at the lock service stands, whose key holds the resource.

    A lost reply is answered by asking again with the same request ID on a new connection (R34).

    Raises `AcquireTimeoutError` after `timeout` seconds, or when the database has not answered for
    as long as the lease would last, and `ClaimLostError` when the session at the lock service is
    over; the request is withdrawn. Raises `NotHeldError` when the lease of this request is over.
    """
    until = inf if timeout is None else clock() + timeout
    slow_at = inf
    if wanted.coordinator != "postgres":
        # A key that holds gets three seconds longer to be seen.
        slow_at = clock() + _SIGNING
        until = max(until, slow_at)
    waiting = _Waiting()
    decided = False
    silent_since = inf
    pause = _FIRST_PAUSE
    while True:
        try:
            if silent_since < inf:
                yield Reopen(limit(until - clock()))
                waiting.reconnected()
            answer = yield from ask(request(wanted), clock, limit(until - clock()))
            silent_since, pause, why = inf, _FIRST_PAUSE, answer.reason
            if standing() is Standing.LOST:
                until = -inf
            elif answer.state == "HELD" and answer.token:
                return answer
            if answer.state not in ("WAIT", "SIGNING", "HELD"):
                raise answer.not_held()
            if answer.state == "SIGNING":
                why = "it is granted and not signed yet: is a registry process running?"
                if not decided and until > -inf:
                    decided, slow_at = True, answer.asked_at + _SIGNING
                    until = max(until, slow_at)
                    waiting.look_soon()
            if clock() < until:
                if clock() >= slow_at:  # who waits for ever would never hear why
                    _log.warning("waiting for %s: %s", wanted.resource, why)
                    slow_at = inf
                patience = min((answer.look_again_ms or 0) / 1000, until - clock())
                yield from waiting.wait(answer.wake_channel, patience)
                continue
        except Failed as failed:
            if failed.lost:
                silent_since = min(silent_since, clock())
            elif failed.sqlstate in _ASK_AGAIN:
                # The call waits for a transaction of the old owner, and was cancelled for that.
                silent_since = inf
            else:
                failed.rethrow()
            why = failed.message
            if clock() + pause < min(until, silent_since + wanted.ttl_ms / 1000):
                yield Sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
        with suppress(Failed):
            if silent_since < inf:
                yield Reopen(SHORTEST_CALL)
            yield from give_up(wanted.request_id, clock)
        if standing() is Standing.LOST:
            raise errors.ClaimLostError(
                f"the session at {wanted.coordinator} ended before {wanted.resource} was granted"
            )
        raise errors.AcquireTimeoutError(f"{wanted.resource} did not become ours in time: {why}")


def give_up(request_id: str, clock: Clock) -> Steps[Answer]:
    """Withdraw a request, or release what it got, on whatever connection there is."""
    call = Call("select * from pgfence_registry.withdraw($1)", (request_id,))
    return (yield from ask(call, clock, SHORTEST_CALL))


class Renewal(NamedTuple):
    """How a lease is renewed within so many seconds, and when at the latest."""

    renew: Callable[[float], Steps[Answer]]
    until: float = inf


def keep(
    lease: str,
    ttl_ms: int,
    change: Change,
    clock: Clock,
    standing: Callable[[], Standing] = _always,
    next_renewal: Callable[[], Renewal] | None = None,
) -> Steps[None]:
    """Renew at a third of the lease until it is over or the worker has given it back.

    While the session at the lock service is in doubt nothing is renewed: whoever holds the resource
    there now need not wait for longer than what was confirmed before.
    next_renewal: where calling renew() is not all there is to it.
    """
    call = Call("select * from pgfence_registry.renew($1)", (lease,))
    plain = Renewal(lambda within: ask(call, clock, within))
    while not (ownership := change(Ownership.at)).is_final:
        renewal = next_renewal() if next_renewal else plain
        left = min(ownership.deadline, renewal.until) - clock()
        # In doubt nothing is renewed, not even a proof that is over: that is no cause to hurry.
        least = 0.0 if standing() is Standing.HELD else _FIRST_PAUSE
        # Jitter, so that workers that started together do not renew together.
        yield Sleep(max(least, left / 3 * random.uniform(0.9, 1.0)))  # noqa: S311
        if standing() is Standing.HELD and not change(Ownership.renewing).is_final:
            yield from _renew(lease, ttl_ms, change, renewal)


def _renew(lease: str, ttl_ms: int, change: Change, renewal: Renewal) -> Steps[None]:
    """Ask until the registry answers or the lease is over; doubt in between (R42)."""
    lost = False
    pause = _FIRST_PAUSE
    while True:
        try:
            if lost:
                yield Reopen()
                lost = False
            answer = yield from renewal.renew(max(ttl_ms / 3000, _SHORTEST_RENEWAL))
        except Failed as failed:
            _log.warning("lease %s: renewing failed: %s", lease, failed.message)
            lost = lost or failed.lost
            if change(Ownership.doubted).is_final:
                return
            yield Sleep(pause)
            if change(Ownership.at).is_final:
                return
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            change(answer.applied_to)
            return


def prove(
    lease: str,
    issued_after: int,
    renewed: Callable[[Answer], object],
    clock: Clock,
    within: float,
) -> Steps[tuple[Answer, Answer]]:
    """Renew, and ask for a status proof that is later than the one before (R13).

    issued_after: when that one was issued, in microseconds on the registry's clock; 0 for the
    first. renewed: called with the answer to the renewal. Returns that, and the answer with the
    proof, of which `remaining_ms` is left; the second has no token where the lease is over. Fails
    when the proof is not signed within so many seconds.
    """
    renewing = Call("select * from pgfence_registry.renew($1)", (lease,))
    asking = Call("select * from pgfence_registry.prove($1, $2)", (lease, issued_after))
    asked_at = clock()
    until = asked_at + within
    renewal, proven = yield Batch((renewing, asking), within=within)
    answer, proof = Answer.from_row(renewal[0], asked_at), Answer.from_row(proven[0], asked_at)
    renewed(answer)
    waiting = _Waiting()
    while proof.state == "SIGNING":
        patience = min((proof.look_again_ms or 0) / 1000, until - clock())
        if patience <= 0:
            raise Failed("no registry process has signed the status proof", lost=False)
        yield from waiting.wait(proof.wake_channel, patience)
        proof = yield from ask(asking, clock, max(until - clock(), _SHORTEST_RENEWAL))
    return answer, proof


def release(lease: str, ttl_ms: int, clock: Clock) -> Steps[Answer]:
    """Give a lease back; on a new connection if the old one is lost.

    Takes no longer than the lease would last: by then it has ended by itself.
    """
    call = Call("select * from pgfence_registry.release($1)", (lease,))
    return (yield from reopening(lambda: ask(call, clock, limit(ttl_ms / 1000))))
