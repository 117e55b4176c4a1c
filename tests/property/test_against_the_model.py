"""Random histories against real PostgreSQL: every verdict and all of the state as in the model.

PGFENCE_HISTORIES says how many histories are tried, 60 by default.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections import Counter
from dataclasses import replace
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pgfence.model.verdict import ACCEPTING
from tests.property.model import Model, ModelGrant
from tests.support import Database, Keys, sign_pending
from tests.workers import Worker, forge, grant_of, sign_in_one_session

HISTORIES = int(os.environ.get("PGFENCE_HISTORIES", "60"))
STEPS = 40
ROLES = {"worker-a": "worker_a", "worker-b": "worker_b"}
_numbers = itertools.count(1)

small = st.integers(0, 7)
step = st.tuples(
    st.sampled_from(
        # the more often named, the more often drawn
        ["next"] * 16
        + ["request"] * 8
        + ["segment", "replay", "conflict", "advance", "forge", "expire", "release"] * 3
        + ["rollback"] * 2
        + ["stranger", "renew", "policy", "pause", "epoch"]
    ),
    small,
    small,
)
histories = st.lists(step, min_size=STEPS, max_size=STEPS)


class History:
    """One history, lived by the database and by the model side by side."""

    def __init__(
        self,
        database: Database,
        keys: Keys,
        workers: dict[str, Worker],
        owner: Any,
        above: str = "",
    ) -> None:
        self.database, self.keys, self.workers, self.owner = database, keys, workers, owner
        #: Where the registry is, and everybody's session there.
        self.registry, self.at_registry, self.registry_owner = database, workers, owner
        self.prefix = f"{above}history-{next(_numbers)}/"
        self.in_shadow = above != ""
        self.resources = [f"{self.prefix}{name}" for name in ("x", "y")]
        self.steps: list[str] = []
        self.model = Model()
        (self.model.generation,) = self._as_owner(
            "select pgfence.set_policy(%s, null)", self.prefix
        )
        (self.model.lowest_epoch,) = self._as_owner(
            "select greatest(epoch_floor, 1) from pgfence.configuration"
        )
        self.grants: list[tuple[ModelGrant, str]] = []
        self.verdicts: Counter[str] = Counter()
        self.stream: list[tuple[str, str | None]] = []

    def _as_owner(self, query: str, *parameters: Any) -> Any:
        return self.owner.execute(query, parameters or None).fetchone()

    def _pick(self, number: int) -> tuple[ModelGrant, str]:
        """A grant; the latest ones come up more often."""
        return self.grants[-1 - number % 4 if number % 4 < len(self.grants) else 0]

    def live(self, steps: list[tuple[str, int, int]]) -> None:
        """Take the steps, and compare all of the state at the end."""
        for action, first, second in steps:
            self.take(action, first, second)
        self.compare()

    def take(self, action: str, first: int, second: int) -> None:
        self.steps.append(f"{action} {first} {second}")
        if action == "request" or not self.grants:
            self.request(first, second)
        else:
            getattr(self, action)(first, second)

    def request(self, first: int, second: int) -> None:
        resource = self.resources[first % 2]
        owner = list(ROLES)[second % 2]
        worker = self.at_registry[owner]
        if self.model.fence(resource).paused:
            return
        may = self.model.may_grant(resource)
        operation = "settle"
        answer = worker.ask(resource, f"request-{next(_numbers)}", operation=operation)
        assert (answer.state == "SIGNING") == may, answer
        if not may:
            worker.call("select * from pgfence_registry.withdraw(%s)", [answer.request_id])
            return
        sign_pending(self.registry, worker.signer)
        token = worker.ask(resource, answer.request_id, operation=operation).token
        self._add(token)
        self.model.granted(self.grants[-1][0])

    def _add(self, token: str, *, genuine: bool = True) -> None:
        claims = grant_of(token)
        grant = ModelGrant(
            resource=claims.resource,
            owner=claims.owner,
            lease=claims.lease,
            root=claims.operation_root,
            fence=claims.fence_token,
            operation=claims.operation_class,
            generation=claims.policy_generation,
            epoch=claims.issuer_epoch,
            genuine=genuine,
        )
        self.grants.append((grant, token))

    def _apply(
        self, number: int, segment: int | None, payload: str, *, stranger: bool = False
    ) -> None:
        grant, token = self._pick(number)
        caller = grant.owner if not stranger else next(o for o in ROLES if o != grant.owner)
        expected = self.model.apply(grant, caller, segment, payload)
        worker = self.workers[caller]
        status = self._status(grant)
        if segment is None:
            found = worker.advance(token, status)
        else:
            found = worker.apply(token, segment, payload, status)
        verdict = found.would_refuse if self.in_shadow and found.would_refuse else found.verdict
        assert (verdict, found.reason) == expected, self.steps
        if verdict != "BAD_SIGNATURE":  # the broken byte may be in the name of the resource
            let_through = self.in_shadow and verdict not in ACCEPTING
            assert (found.would_refuse is not None) == let_through
            assert (found.verdict == "WOULD_REFUSE") == let_through
        self.verdicts[verdict] += 1
        self.stream.append(expected)

    def _status(self, grant: ModelGrant) -> str | None:
        """What shows that it is held, where no look can."""
        return None

    def next(self, first: int, second: int) -> None:
        """The segment that an honest owner would send."""
        grant, _ = self._pick(first)
        fence = self.model.fence(grant.resource)
        segment = fence.last + 1 if grant.fence == fence.highest else 1
        self._apply(first, segment, f"payload {segment}")

    def segment(self, first: int, second: int) -> None:
        self._apply(first, second + 1, f"payload {second + 1}")

    def replay(self, first: int, second: int) -> None:
        grant, _ = self._pick(first)
        last = self.model.fence(grant.resource).last
        self._apply(first, max(1, last), f"payload {max(1, last)}")

    def conflict(self, first: int, second: int) -> None:
        grant, _ = self._pick(first)
        self._apply(first, max(1, self.model.fence(grant.resource).last), "something else")

    def advance(self, first: int, second: int) -> None:
        self._apply(first, None, "")

    def stranger(self, first: int, second: int) -> None:
        self._apply(first, second + 1, "payload", stranger=True)

    def forge(self, first: int, second: int) -> None:
        """A token that is signed well but was never decided by the registry, or a broken one."""
        grant, token = self._pick(first)
        claims = grant_of(token)
        changes: list[dict[str, Any]] = [
            {"lease": f"lease-{next(_numbers)}"},
            {"operation_root": f"sha256:{next(_numbers):064x}"},
            {"fence_token": claims.fence_token + 1},
            {"fence_token": max(1, claims.fence_token - 1)},
            {"fence_token": 2**50, "operation_root": f"sha256:{next(_numbers):064x}"},
            {"operation_class": "purge"},
            {"issuer_epoch": 0},
        ]
        if second < len(changes):
            if not grant.genuine:
                return
            self._add(forge(claims, self.keys, **changes[second]))
        else:
            other = "A" if token[30] != "A" else "B"
            self.grants.append((replace(grant, genuine=False), token[:30] + other + token[31:]))
        self._apply(0, second % 3 + 1, "payload")
        self.grants.pop()

    def expire(self, first: int, second: int) -> None:
        grant, _ = self._pick(first)
        self.registry_owner.execute(
            "update pgfence_registry.grants set lease_ends_at = clock_timestamp()"
            " where lease = %s and lease_ends_at > clock_timestamp()",
            [grant.lease],
        )
        self.model.expire(grant.lease)

    def release(self, first: int, second: int) -> None:
        grant, _ = self._pick(first)
        self.model.release(grant)
        answer = self.at_registry[grant.owner].release(grant.lease)
        assert answer.state == self.model.leases[grant.lease]

    def renew(self, first: int, second: int) -> None:
        grant, _ = self._pick(first)
        answer = self.at_registry[grant.owner].renew(grant.lease)
        assert answer.state == self.model.renew(grant)

    def policy(self, first: int, second: int) -> None:
        self.model.operations = None if second % 2 else frozenset({"settle"})
        classes = sorted(self.model.operations) if self.model.operations else None
        (self.model.generation,) = self._as_owner(
            "select pgfence.set_policy(%s, %s)", self.prefix, classes
        )

    def pause(self, first: int, second: int) -> None:
        resource, paused = self.resources[first % 2], second < 3
        exists = self._as_owner(
            "update pgfence.fences set paused_because = %s where resource = %s returning 1",
            "a test" if paused else None,
            resource,
        )
        if exists:
            self.model.fence(resource).paused = paused

    def epoch(self, first: int, second: int) -> None:
        if second == 0:
            self.model.lowest_epoch += 1
            self._as_owner(
                "update pgfence.configuration set epoch_floor = %s, issuer_epoch = %s,"
                " version = version + 1 returning 1",
                self.model.lowest_epoch,
                self.model.lowest_epoch,
            )

    def rollback(self, first: int, second: int) -> None:
        """What is rolled back never was."""
        grant, _ = self._pick(first)
        before = copy.deepcopy(self.model)
        conn = self.workers[grant.owner].conn
        conn.execute("begin")
        for _ in range(1 + second % 2):
            self.next(first, second)
        conn.execute("rollback")
        self.model = before

    def compare(self) -> None:
        """The whole state."""
        for resource in self.resources:
            fence = self.model.fence(resource)
            row = self._as_owner(
                "select highest_fence, last_segment, receipt_count,"
                " paused_because is not null from pgfence.fences where resource = %s",
                resource,
            ) or (0, 0, 0, False)
            assert row == (fence.highest, fence.last, len(fence.receipts), fence.paused)
            issued = self.registry_owner.execute(
                "select issued_fence from pgfence.fences where resource = %s", [resource]
            ).fetchone() or (0,)
            assert issued == (fence.issued,)
            receipts = self.owner.execute(
                "select fence_token, segment_seq, encode(payload_digest, 'hex')"
                " from pgfence.receipts where resource = %s",
                [resource],
            ).fetchall()
            assert {(fence_token, segment) for fence_token, segment, _ in receipts} == set(
                fence.receipts
            )
            assert self._as_owner("select ok from pgfence.verify_receipts(%s)", resource) == (True,)


class Begin(Protocol):
    """Makes histories, each with resources of its own, whose names begin with `above`."""

    def __call__(self, above: str = "") -> History: ...


def here(database: Database, keys: Keys) -> Begin:
    """Histories of a database that is its own registry."""
    workers = {owner: Worker.login(database, keys, role) for owner, role in ROLES.items()}
    sign_in_one_session(database, workers.values())
    owner = database.connect()
    owner.execute("set role pgfence_owner")
    return lambda above="": History(database, keys, workers, owner, above)


#: How often histories are lived again for a verdict that chance has kept away.
ROUNDS = 20


def live(begin: Begin, how_many: int, *wanted: str) -> Counter[str]:
    """So many random histories, each of which agrees with the model, and as many again until each
    verdict that is wanted has come; the verdicts, counted.
    """
    seen: Counter[str] = Counter()

    @settings(
        max_examples=how_many,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(histories)
    def agree(steps: list[tuple[str, int, int]]) -> None:
        history = begin()
        history.live(steps)
        seen.update(history.verdicts)

    for _ in range(ROUNDS):
        agree()
        if seen.keys() >= set(wanted):
            break
    print(f"verdicts in {how_many} histories: {dict(seen.most_common())}")
    return seen


@pytest.mark.timeout(3600)
def test_r5_to_r21_random_histories_agree_with_the_model(database: Database, keys: Keys) -> None:
    seen = live(here(database, keys), HISTORIES, "ACCEPTED")
    assert seen["ACCEPTED"] > 0
