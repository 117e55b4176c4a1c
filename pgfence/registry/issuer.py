"""Sign what the database has decided (R53). Needs a role in pgfence_registry."""

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pgfence import tokens
from pgfence.client.protocol import introduce
from pgfence.clock import monotonic
from pgfence.drivers.psycopg import run_on
from pgfence.errors import LockServiceError, TokenRefusedError, TrustRefusedError
from pgfence.model.bundle import TrustBundle
from pgfence.model.grant import Grant
from pgfence.model.signature import key_id, raw_public_key
from pgfence.model.status import StatusProof
from pgfence.queries import Connection, rows
from pgfence.registry.witness import Witness

#: The grants that wait, the bundle in force, and the database's clock in microseconds.
_PENDING = """
    select g.lease, g.message, b.digest,
           (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::bigint
      from pgfence_registry.unsigned_grants() with ordinality as g (lease, message, turn)
     cross join pgfence.trust_bundle() as b
     order by g.turn
"""
#: The same of status proofs.
_UNPROVEN = _PENDING.replace("unsigned_grants", "unsigned_proofs")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one unsigned grant, or of the status proof of one.

    `recorded` is False when another issuer was faster, the lease is over or the worker's own
    transaction holds the row, and when `problem` says why it was not signed.
    """

    lease: str
    recorded: bool
    grant: Grant | None = None
    problem: str | None = None


class Issuer:
    """Signs grants with one Ed25519 key, on connections that the caller gives.

    With a status key it signs status proofs as well, which databases elsewhere ask for (R13).

    It decides nothing, and takes no lock: Ed25519 is deterministic, so two issuers with one key
    give the same token, and the first to record it counts. It signs only while its key is a valid
    grant key of the trust bundle in force; it trusts the first bundle that it meets, and then what
    follows from that (R33).
    """

    def __init__(
        self,
        key: Ed25519PrivateKey,
        status_key: Ed25519PrivateKey | None = None,
        witness: Witness | None = None,
    ) -> None:
        self._key = key
        self._status_key = status_key
        #: Asked before each grant that rests on a lock service is signed.
        self.witness = witness or Witness()
        self._bundle: TrustBundle | None = None
        self.kid = key_id(raw_public_key(key))

    def meet(self, conn: Connection) -> tuple[TrustBundle, int]:
        """The trust bundle in force and the database's clock, if this issuer's signatures count.

        Raises `TrustRefusedError`, `BundleSplitError`, and what `introduce` raises.
        """
        trusted = self._bundle.digest if self._bundle else None
        found = run_on(conn, introduce(monotonic, trusted))
        now_us = round(found.server_time.timestamp() * 1_000_000)
        self.check(found.bundle, now_us)
        self._bundle = found.bundle
        return found.bundle, now_us

    def check(self, bundle: TrustBundle, now_us: int) -> None:
        """Return if the guard accepts grants of this key at `now_us`, microseconds since the epoch.

        Raises `TrustRefusedError` otherwise.
        """
        _require_key(bundle, self.kid, "grant", now_us)
        if self._status_key is not None:
            _require_key(bundle, key_id(raw_public_key(self._status_key)), "status", now_us)

    def sign_pending(self, conn: Connection) -> list[Outcome]:
        """Sign every decided grant that waits for it.

        `conn` should be in autocommit: a signature counts, and wakes its worker, when it commits.
        Raises what `meet` raises, and then signs nothing.
        """
        return [self._sign(conn, lease, message) for lease, message in self._found(conn, _PENDING)]

    def prove_pending(self, conn: Connection) -> list[Outcome]:
        """Sign every status proof that a worker waits for; none without a status key.

        Raises what `meet` raises, and then signs nothing.
        """
        if self._status_key is None:
            return []
        return [
            self._prove(conn, lease, message, self._status_key)
            for lease, message in self._found(conn, _UNPROVEN)
        ]

    def _found(self, conn: Connection, query: str) -> list[tuple[str, str]]:
        """What waits, once the keys are known to count: lease and message."""
        pending = rows(conn, query)
        if pending:
            *_, digest, now_us = pending[0]
            if self._bundle is None or self._bundle.digest != digest:
                self.meet(conn)
            else:
                self.check(self._bundle, now_us)
        return [(lease, message) for lease, message, *_ in pending]

    def _sign(self, conn: Connection, lease: str, message: str) -> Outcome:
        # What is signed is what this process understood, not whatever the table holds.
        try:
            grant = Grant.parse(message.encode())
        except TokenRefusedError as refused:
            return Outcome(lease, recorded=False, problem=f"not a lockGrant.v1: {refused.reason}")
        if grant.lease != lease:
            return Outcome(lease, recorded=False, problem=f"the grant is for lease {grant.lease}")
        try:
            confirmed = self.witness.confirms(grant)
        except LockServiceError as error:
            return Outcome(lease, recorded=False, problem=str(error))
        if not confirmed:
            rows(conn, "select pgfence_registry.refuse_signature($1)", lease)
            problem = f"its key does not hold {grant.resource} at {grant.backend} any more"
            return Outcome(lease, recorded=False, problem=problem)
        token = tokens.sign(grant.encode(), Grant.SCHEMA, self._key)
        ((recorded,),) = rows(
            conn, "select pgfence_registry.record_signature($1, $2)", lease, token
        )
        return Outcome(lease, recorded, grant)

    def _prove(self, conn: Connection, lease: str, message: str, key: Ed25519PrivateKey) -> Outcome:
        try:
            proof = StatusProof.parse(message.encode())
        except TokenRefusedError as refused:
            return Outcome(lease, recorded=False, problem=f"not a lockStatus.v1: {refused.reason}")
        token = tokens.sign(proof.encode(), StatusProof.SCHEMA, key)
        ((recorded,),) = rows(
            conn, "select pgfence_registry.record_proof($1, $2, $3)", lease, message, token
        )
        return Outcome(lease, recorded)


def _require_key(bundle: TrustBundle, kid: str, purpose: str, now_us: int) -> None:
    key = bundle.key(kid)
    if key is None or key.purpose != purpose:
        what = "no key" if key is None else f"a {key.purpose} key"
        raise TrustRefusedError(
            f"key {kid} is {what} of trust bundle {bundle.version}, so the guard would "
            f"refuse every {'grant' if purpose == 'grant' else 'status proof'} that it signs",
            {"kid": kid, "bundle": bundle.version},
            hint=f"Start the registry with a {purpose} key of the installed bundle.",
            rule="R5",
        )
    if not key.not_before <= now_us < min(key.expires_at, bundle.expires_at):
        raise TrustRefusedError(
            f"key {kid} of trust bundle {bundle.version} is not valid now",
            {"kid": kid, "bundle": bundle.version},
            rule="R5",
        )
