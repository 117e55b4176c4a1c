"""Workers on one database of several that have a history in common, and what they got accepted."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

from tests.support import Database, Keys
from tests.workers import Worker

ACCEPTING = frozenset({"ACCEPTED", "REPLAYED", "ADVANCED"})
_request_ids = itertools.count(1)


@dataclass
class Held:
    """A grant that a worker got, and the last segment that was acknowledged to it."""

    resource: str
    role: str
    token: str
    lease: str
    fence_token: int
    last_segment: int = 0


@dataclass
class Side:
    """One database, its workers, and every grant that they ever got there."""

    database: Database
    keys: Keys
    grants: list[Held] = field(default_factory=list)
    workers: dict[str, Worker] = field(default_factory=dict)

    def worker(self, role: str) -> Worker:
        """The session of a role here."""
        if role not in self.workers:
            self.workers[role] = Worker.login(self.database, self.keys, role)
        return self.workers[role]

    def acquire(self, role: str, resource: str) -> Held | None:
        """A grant, if the resource is free; as a worker does, with a new request ID."""
        request_id = f"request-{next(_request_ids)}"
        answer = self.worker(role).acquire(resource, request_id, ttl_ms=86_400_000)
        if answer.state != "HELD":
            self.worker(role).call("select * from pgfence_registry.withdraw(%s)", [request_id])
            return None
        held = Held(resource, role, answer.token, answer.lease, answer.fence_token)
        self.grants.append(held)
        return held

    def offer(self, held: Held, segment: int) -> str:
        """The verdict on a segment, which is committed with its row if it is accepted."""
        worker = self.worker(held.role)
        with worker.transaction():
            verdict: str = worker.apply(held.token, segment, f"segment {segment}").verdict
            if verdict == "ACCEPTED":
                worker.conn.execute(
                    "insert into ledger values (%s, %s, %s)",
                    [held.resource, held.fence_token, segment],
                )
        return verdict

    def apply(self, held: Held) -> str:
        """Apply the next segment."""
        verdict = self.offer(held, held.last_segment + 1)
        if verdict == "ACCEPTED":
            held.last_segment += 1
        return verdict

    def step(self, choose: random.Random, resources: list[str]) -> None:
        """Something that a worker does, by chance."""
        role, resource = choose.choice(["worker_a", "worker_b"]), choose.choice(resources)
        mine = [g for g in self.grants if g.resource == resource]
        action = choose.choice(["apply"] * 4 + ["take over", "renew"])
        if not mine or action == "take over":
            if mine:
                self.worker(mine[-1].role).release(mine[-1].lease)
            taken = self.acquire(role, resource)
            assert taken is not None
            assert self.apply(taken) == "ACCEPTED"
        elif action == "renew":
            assert self.worker(mine[-1].role).renew(mine[-1].lease).state == "HELD"
        else:
            assert self.apply(mine[-1]) == "ACCEPTED"

    def minted(self) -> dict[tuple[str, int], Any]:
        """Each fence token that was ever minted here, and the digest of its grant."""
        return self._map("select resource, fence_token, digest from pgfence_registry.grants")

    def written(self) -> dict[tuple[str, int], Any]:
        """Each fence token that was ever accepted here, and the digest of its grant."""
        return self._map("select resource, fence_token, grant_digest from pgfence.operations")

    def _map(self, query: str) -> dict[tuple[str, int], Any]:
        rows = self.database.connect().execute(query).fetchall()
        return {(resource, fence): bytes(digest) for resource, fence, digest in rows}

    def assert_whole(self) -> None:
        """Rows and receipts belong together, and the chains are whole."""
        conn = self.database.connect()
        rows = conn.execute("select resource, fence, segment from ledger").fetchall()
        receipts = conn.execute(
            "select resource, fence_token, segment_seq from pgfence.receipts"
        ).fetchall()
        assert sorted(rows) == sorted(receipts)
        broken = conn.execute(
            "select v.* from pgfence.fences as f, pgfence.verify_receipts(f.resource) as v"
            " where not v.ok"
        ).fetchall()
        assert broken == []


def twice(one: dict[tuple[str, int], Any], other: dict[tuple[str, int], Any]) -> int:
    """How many fence tokens two histories use for different grants."""
    return sum(other.get(fence, digest) != digest for fence, digest in one.items())
