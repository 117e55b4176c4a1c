"""Sign what the database has decided (R53). Needs a role in pgfence_registry."""

from dataclasses import dataclass
from typing import Any

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from psycopg.rows import tuple_row

from pgfence import tokens
from pgfence.client.database import monotonic
from pgfence.client.protocol import introduce
from pgfence.drivers.psycopg import run_on
from pgfence.errors import TokenRefusedError, TrustRefusedError
from pgfence.model.bundle import TrustBundle
from pgfence.model.grant import Grant
from pgfence.model.signature import key_id, raw_public_key

Connection = psycopg.Connection[Any]

#: The grants that wait, the bundle in force, and the database's clock in microseconds.
_PENDING = """
    select g.lease, g.message, b.digest,
           (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::bigint
      from pgfence_registry.unsigned_grants() with ordinality as g (lease, message, turn)
     cross join pgfence.trust_bundle() as b
     order by g.turn
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one unsigned grant.

    `recorded` is False when another issuer was faster or the lease is over, and when `problem` says
    why the grant was not signed.
    """

    lease: str
    recorded: bool
    grant: Grant | None = None
    problem: str | None = None


class Issuer:
    """Signs grants with one Ed25519 key, on connections that the caller gives.

    It decides nothing, and takes no lock: Ed25519 is deterministic, so two issuers with one key
    give the same token, and the first to record it counts. It signs only while its key is a valid
    grant key of the trust bundle in force; it trusts the first bundle that it meets, and then what
    follows from that (R33).
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
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
        key = bundle.key(self.kid)
        if key is None or key.purpose != "grant":
            what = "no key" if key is None else f"a {key.purpose} key"
            raise TrustRefusedError(
                f"key {self.kid} is {what} of trust bundle {bundle.version}, so the guard would "
                "refuse every grant that it signs",
                {"kid": self.kid, "bundle": bundle.version},
                hint="Start the registry with a grant key of the installed bundle.",
                rule="R5",
            )
        if not key.not_before <= now_us < min(key.expires_at, bundle.expires_at):
            raise TrustRefusedError(
                f"key {self.kid} of trust bundle {bundle.version} is not valid now",
                {"kid": self.kid, "bundle": bundle.version},
                rule="R5",
            )

    def sign_pending(self, conn: Connection) -> list[Outcome]:
        """Sign every decided grant that waits for it.

        `conn` should be in autocommit: a signature counts, and wakes its worker, when it commits.
        Raises what `meet` raises, and then signs nothing.
        """
        pending = _rows(conn, _PENDING)
        if pending:
            *_, digest, now_us = pending[0]
            if self._bundle is None or self._bundle.digest != digest:
                self.meet(conn)
            else:
                self.check(self._bundle, now_us)
        return [self._sign(conn, lease, message) for lease, message, *_ in pending]

    def _sign(self, conn: Connection, lease: str, message: str) -> Outcome:
        # What is signed is what this process understood, not whatever the table holds.
        try:
            grant = Grant.parse(message.encode())
        except TokenRefusedError as refused:
            return Outcome(lease, recorded=False, problem=f"not a lockGrant.v1: {refused.reason}")
        if grant.lease != lease:
            return Outcome(lease, recorded=False, problem=f"the grant is for lease {grant.lease}")
        token = tokens.sign(grant.encode(), Grant.SCHEMA, self._key)
        ((recorded,),) = _rows(
            conn, "select pgfence_registry.record_signature($1, $2)", (lease, token)
        )
        return Outcome(lease, recorded, grant)


def _rows(conn: Connection, query: str, parameters: tuple[str, ...] = ()) -> list[Any]:
    with psycopg.RawCursor(conn, row_factory=tuple_row) as cursor:
        return cursor.execute(query, parameters).fetchall()
