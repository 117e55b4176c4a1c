"""How a lease is renewed and shown to the database where its registry is in another one (R13)."""

from collections.abc import Callable
from math import inf
from typing import Any

from pgfence import errors
from pgfence.client import protocol
from pgfence.client.database import Database
from pgfence.client.protocol import Answer, Failed, Proof, Sleep, Steps
from pgfence.clock import monotonic
from pgfence.model.grant import Grant

#: Seconds that a status proof gets at most to be signed.
_LONGEST_PROVING = 10.0


class Proofs:
    """The status proofs of one lease, where the registry is elsewhere (R13)."""

    def __init__(self, database: Database[Any], grant: Grant) -> None:
        self._database = database
        self._grant = grant
        self._issued_at = 0
        self._not_before = -inf
        self.latest = Proof()

    def renew(self, renewed: Callable[[Answer], object], within: float) -> Steps[Answer]:
        """Renew the lease, and get a proof of it that passes this client's own check (R54).

        renewed: called with the registry's answer, whether or not a proof can be had. Fails if not.
        """
        while (early := self._not_before - monotonic()) > 0:
            yield Sleep(early)
        answer, proven = yield from protocol.prove(
            self._grant.lease, self._issued_at, renewed, monotonic, min(within, _LONGEST_PROVING)
        )
        if proven.token is None:
            return proven
        verifier = self._database.verifier
        try:
            try:
                proof = verifier.verify_proof(proven.token, self._grant)
            except errors.TokenRefusedError as refused:
                if refused.verdict != "UNKNOWN_KEY":
                    raise
                yield from self._database.at_resource(verifier.follow())
                proof = verifier.verify_proof(proven.token, self._grant)
        except errors.TokenRefusedError as refused:
            why = f"the registry's status proof failed this client's own check: {refused}"
            raise Failed(why, lost=False) from refused
        self._issued_at = proof.issued_at
        left = (proven.remaining_ms or 0) / 1000 - self._database.tolerance
        self.latest = Proof(proven.token, proven.asked_at + left)
        return answer

    def only_later(self) -> None:
        """Ask for the next one only when it is certainly later than now on both clocks (R39)."""
        self._not_before = monotonic() + 2 * self._database.tolerance
