"""A registry in another database than the resources (R13): how tests arrange and use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from pgfence import tokens
from pgfence.model.status import StatusProof
from tests.support import AUDIENCE, Database, Keys, registry_session
from tests.workers import Worker, proof_of


def use_registry_elsewhere(
    resource: Database, registry: Database, *, prefix: str = "", tolerance_ms: int = 500
) -> None:
    """Let `registry` decide who holds the resources of a prefix, which `resource` guards."""
    with psycopg.connect(resource.dsn("dba")) as conn:
        row = conn.execute("select pgfence.use_registry_elsewhere(%s)", [tolerance_ms]).fetchone()
    assert row is not None
    with psycopg.connect(registry.dsn("dba")) as conn:
        conn.execute("select pgfence.place(%s, %s, %s)", [prefix, AUDIENCE, row[0]])


def sign_proofs(
    registry: Database, keys: Keys, session: psycopg.Connection[Any] | None = None
) -> None:
    """Sign every status proof that is waited for, as the registry process would."""
    with registry_session(registry, session) as conn:
        waiting = conn.execute("select lease, message from pgfence_registry.unsigned_proofs()")
        for lease, message in waiting.fetchall():
            token = tokens.sign(message.encode(), StatusProof.SCHEMA, keys.status)
            conn.execute(
                "select pgfence_registry.record_proof(%s, %s, %s)", [lease, message, token]
            )


@dataclass
class Owner:
    """A worker with a session in each of the two databases."""

    keys: Keys
    resource: Worker
    registry: Worker

    @classmethod
    def login(cls, resource: Database, registry: Database, keys: Keys, role: str) -> Owner:
        return cls(keys, Worker.login(resource, keys, role), Worker.login(registry, keys, role))

    def acquire(self, resource: str, request_id: str | None = None, **arguments: Any) -> Any:
        """As `Worker.acquire`, at the registry."""
        return self.registry.acquire(resource, request_id, **arguments)

    def ask_proof(self, lease: str, issued_after: int = 0) -> Any:
        """One call of prove(), answered as it is."""
        return self.registry.call(
            "select * from pgfence_registry.prove(%s, %s)", [lease, issued_after]
        )

    def prove(self, lease: str, issued_after: int = 0) -> str:
        """A status proof of the lease, later than `issued_after`; the registry signs it here."""
        answer = self.ask_proof(lease, issued_after)
        if answer.state == "SIGNING":
            sign_proofs(self.registry.database, self.keys, self.registry.signer)
            answer = self.ask_proof(lease, issued_after)
        assert answer.state == "HELD", answer
        token: str = answer.token
        return token

    def renew(self, lease: str, proof: str) -> str:
        """Renew, and a proof that is later than this one."""
        assert self.registry.renew(lease).state == "HELD"
        return self.prove(lease, proof_of(proof).issued_at)

    def apply(self, token: str, segment: int, proof: str | None, payload: str = "payload") -> Any:
        return self.resource.apply(token, segment, payload, proof)

    def advance(self, token: str, proof: str | None) -> Any:
        return self.resource.advance(token, proof)
