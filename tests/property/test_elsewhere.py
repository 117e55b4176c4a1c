"""Random histories with the registry in another database: every verdict as in the model (R13).

PGFENCE_ELSEWHERE_HISTORIES says how many histories are tried, 20 by default.
"""

from __future__ import annotations

import os
import time
from dataclasses import fields
from typing import Any

import pytest

from tests.elsewhere import Owner, use_registry_elsewhere
from tests.property.model import ElsewhereModel, ModelGrant
from tests.property.test_against_the_model import ROLES, Begin, History, live
from tests.support import Database, Keys
from tests.workers import grant_of, proof_of, status_proof

HISTORIES = int(os.environ.get("PGFENCE_ELSEWHERE_HISTORIES", "20"))
SECOND = 1_000_000


class ElsewhereHistory(History):
    """Each call shows the latest proof of its lease: one that still runs, or that has ended."""

    def __init__(
        self, owners: dict[str, Owner], owner: Any, registry_owner: Any, database: Database,
        above: str,
    ) -> None:  # fmt: skip
        first = next(iter(owners.values()))
        resource = {name: each.resource for name, each in owners.items()}
        super().__init__(database, first.keys, resource, owner, above)
        self.owners, self.registry_owner = owners, registry_owner
        self.registry = first.registry.database
        self.at_registry = {name: each.registry for name, each in owners.items()}
        kept = {f.name: getattr(self.model, f.name) for f in fields(self.model)}
        self.model: ElsewhereModel = ElsewhereModel(**kept)
        self.proofs: dict[str, str] = {}
        self._follow_policy()

    def _follow_policy(self) -> None:
        """The registry's policy has the generation of the resource's."""
        classes = sorted(self.model.operations) if self.model.operations else None
        self.registry_owner.execute(
            "select pgfence.set_policy(%s, %s, p_generation => %s)",
            [self.prefix, classes, self.model.generation],
        )

    def policy(self, first: int, second: int) -> None:
        super().policy(first, second)
        self._follow_policy()

    def epoch(self, first: int, second: int) -> None:
        super().epoch(first, second)
        self.registry_owner.execute(
            "update pgfence.configuration set epoch_floor = %s, issuer_epoch = %s"
            " where epoch_floor < %s",
            [self.model.lowest_epoch] * 3,
        )

    def _add(self, token: str, *, genuine: bool = True) -> None:
        super()._add(token, genuine=genuine)
        grant, _ = self.grants[-1]
        owner = self.owners[grant.owner]
        if grant.lease not in self.proofs:
            known = owner.registry.look(grant.lease).state != "UNKNOWN"
            # A lease that was made up has no proof: that of another grant is shown.
            proof = owner.prove(grant.lease) if known else next(iter(self.proofs.values()))
            self.proofs[grant.lease] = proof
            if known:
                assert proof_of(proof).grant_digest == grant_of(token).digest

    def _status(self, grant: ModelGrant) -> str | None:
        proof = self.proofs[grant.lease]
        claims, now = proof_of(proof), round(time.time() * SECOND)
        if grant.lease in self.model.ended:
            return self._again(proof, now - 60 * SECOND)
        # However slow the machine is: the proof that it would get now.
        return proof if claims.valid_until > now + 15 * SECOND else self._again(proof, now)

    def _again(self, proof: str, issued_at: int) -> str:
        claims = proof_of(proof)
        epoch = claims.issuer_epoch
        return status_proof(claims.grant_digest, self.keys, issued_at, issuer_epoch=epoch)


def elsewhere(database: Database, registry: Database, keys: Keys) -> Begin:
    """Histories of a database whose registry is another one."""
    use_registry_elsewhere(database, registry)
    owners = {name: Owner.login(database, registry, keys, role) for name, role in ROLES.items()}
    owner, registry_owner = database.connect(), registry.connect()
    for conn in (owner, registry_owner):
        conn.execute("set role pgfence_owner")
    return lambda above="": ElsewhereHistory(owners, owner, registry_owner, database, above)


@pytest.mark.timeout(3600)
def test_r13_random_histories_with_the_registry_elsewhere_agree_with_the_model(
    database: Database, registry_database: Database, keys: Keys
) -> None:
    wanted = {"ACCEPTED", "STALE_STATUS", "STALE_OWNER"}
    seen = live(elsewhere(database, registry_database, keys), HISTORIES, *wanted)
    assert seen.keys() >= wanted
