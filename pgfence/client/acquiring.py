"""How a resource is got: the key at the coordinator, the registry's grant, and the checks of it.

No I/O: generators of steps, as in `protocol`.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from pgfence import errors, observe
from pgfence.client import protocol
from pgfence.client.database import Database, S
from pgfence.client.proofs import Proofs
from pgfence.client.protocol import Answer, Failed, Reopen, Request, Run, Steps
from pgfence.clock import moment, monotonic
from pgfence.coordinators.protocol import Claim, Patience, Standing, claim_of, directory
from pgfence.model.grant import Grant
from pgfence.model.verdict import Verdict

_log = logging.getLogger("pgfence.client")

#: Seconds that the first status proof gets at least to be signed.
_PROVING = 1.0


class Acquired(NamedTuple):
    """The registry's answer to a request, the grant in it, the claim that it rests on, and its
    proofs where they are needed.
    """

    answer: Answer
    grant: Grant
    claim: Claim
    proofs: Proofs | None = None


def acquire(database: Database[S], wanted: Request, timeout: float | None) -> Steps[Acquired]:
    """Get the key of a resource at the coordinator, then the registry's grant; see `Fence.hold`.

    Whoever is interrupted, or may not use what came, gives it back rather than keep others waiting.
    """
    asked_at = monotonic()
    patience = Patience(moment(timeout), monotonic)
    claims: list[Claim] = []

    def claim() -> None:
        place = directory(database.audience, wanted.resource)
        value = claim_of(wanted.request_id, wanted.operation_root)
        claims.append(database.claimant.claim(place, value, wanted.ttl_ms / 1000, patience))
        if patience.given_up:
            claims[0].release()

    try:
        yield from outside(database, claim)
        left = None if timeout is None else patience.left()
        answer, grant, proofs = yield from _ask(database, wanted, left, claims[0].standing)
        observe.acquired(wanted.resource, grant.fence_token, monotonic() - asked_at)
        return Acquired(answer, grant, claims[0], proofs)
    except GeneratorExit:
        raise
    except BaseException:
        # A thread that is still waiting for the key sees this, and gives it back itself.
        patience.give_up()
        for claimed in claims:
            yield from outside(database, claimed.release)
        raise


def outside(database: Database[S], function: Callable[[], object]) -> Steps[None]:
    """Call what may wait for the coordinator."""
    if database.claimant.waits:
        yield Run(function)
    else:
        function()


def _ask(
    database: Database[S],
    wanted: Request,
    timeout: float | None,
    standing: Callable[[], Standing],
) -> Steps[tuple[Answer, Grant, Proofs | None]]:
    """The registry's answer to a request whose key holds, and the grant in it, checked."""
    answer = None
    try:
        answer = yield from protocol.acquire(wanted, timeout, monotonic, standing)
        yield from database.at_resource(database.verifier.follow())
        grant = _checked(database, wanted, answer)
        in_shadow = bool(answer.in_shadow)
        yield from database.at_resource(refuse_lost(database, wanted.resource, in_shadow))
        if not database.elsewhere:
            return answer, grant, None
        return (yield from _proven(database, answer, grant))
    except GeneratorExit:
        raise
    except BaseException as error:
        interrupted = not isinstance(error, Exception)
        if answer is not None or interrupted:
            yield from _withdraw(wanted.request_id, reopen=interrupted)
        raise


def _proven(
    database: Database[S], answer: Answer, grant: Grant
) -> Steps[tuple[Answer, Grant, Proofs]]:
    """The same with its first status proof."""
    proofs = Proofs(database, grant)
    try:
        renewed = yield from proofs.renew(lambda _: None, max(grant.ttl_ms / 3000, _PROVING))
    except Failed as failed:
        if failed.__cause__ is None:  # the proof was not signed, and nothing else has failed
            raise errors.AcquireTimeoutError(
                f"{grant.resource} did not become ours in time: {failed.message}"
            ) from None
        failed.rethrow()
    if renewed.state != "HELD":
        raise renewed.not_held()
    return renewed._replace(token=answer.token, in_shadow=answer.in_shadow), grant, proofs


def refuse_lost(database: Database[S], resource: str, in_shadow: bool) -> Steps[None]:
    """Raise `AcknowledgedSegmentsLostError` if it is so (R47); in shadow let it be heard (R28)."""
    try:
        yield from protocol.refuse_lost(resource, database.acknowledged.of(resource))
    except errors.AcknowledgedSegmentsLostError as error:
        if not in_shadow:
            raise
        _log.warning("in shadow, so let through: %s", error)


def _withdraw(request_id: str, *, reopen: bool) -> Steps[None]:
    try:
        if reopen:
            yield Reopen()
        yield from protocol.give_up(request_id, monotonic)
    except Exception as error:
        _log.warning("request %s was not withdrawn: %s", request_id, error)


def _checked(database: Database[S], request: Request, answer: Answer) -> Grant:
    """The grant in the registry's answer, if it is genuine and what was asked for (R54)."""
    try:
        grant = database.verifier.verify(answer.token or "")
    except errors.TokenRefusedError as refused:
        verdict = Verdict(
            refused.verdict,
            reason=refused.reason,
            explanation=_why(refused, database),
            resource=request.resource,
        )
        raise errors.refusal(verdict) from refused
    wanted = (request.request_id, request.resource, request.operation_root, answer.lease)
    if (grant.request_id, grant.resource, grant.operation_root, grant.lease) != wanted:
        raise errors.PgfenceError(f"the registry's grant is not what {request.request_id} is for")
    return grant


def _why(refused: errors.TokenRefusedError, database: Database[S]) -> str:
    if refused.verdict == "WRONG_AUDIENCE":
        return (
            f"the registry has the resource in database {refused.reason}, and this one is "
            f"{database.audience}: pgfence registry place says where resources are"
        )
    return "the registry's grant failed this client's own check"
