"""Random chains, prunings and damages: verify_receipts notices every damage and nothing else (R22).

PGFENCE_CHAINS says how many chains are tried (20 by default), from PGFENCE_SEED on.
"""

from __future__ import annotations

import os
import random
from typing import Any

import psycopg
import pytest

from tests.support import Database, Keys
from tests.workers import Worker, age_receipts, grant_of

CHAINS = int(os.environ.get("PGFENCE_CHAINS", "20"))
SEED = int(os.environ.get("PGFENCE_SEED", "22"))

_AT = "resource = %(resource)s and (fence_token, segment_seq) = (%(fence)s, %(segment)s)"
_STRETCH = (
    "resource = %(resource)s and (from_fence, from_segment) = (%(from_fence)s, %(from_segment)s)"
)
_MOVE = (
    "update pgfence.receipts set fence_token = {}, segment_seq = {}"
    " where resource = %(resource)s and {}"
)
_UNTIL = _AT.replace(") = (", ") <= (")
_FROM = _AT.replace(") = (", ") >= (")


def _edits(table: str, where: str, *changes: str) -> dict[str, list[str]]:
    return {f"{table}: {c}": [f"update pgfence.{table} set {c} where {where}"] for c in changes}


#: What somebody with all rights does to a chain, at a receipt and a pruned stretch that are drawn.
DAMAGES = {
    **_edits(
        "receipts",
        _AT,
        "fence_token = fence_token + 1000",
        "segment_seq = segment_seq + 1000",
        "operation_root = 'sha256:' || repeat('0', 64)",
        "grant_digest = sha256('x')",
        "payload_digest = sha256('x')",
        "session_role = 'somebody'",
        "accepted_at = accepted_at - interval '1 microsecond'",
        "accepted_at = accepted_at + interval '100 years'",
        "previous_digest = sha256('x')",
        "digest = sha256('x')",
        "resource = resource || '/other'",
    ),
    **_edits(
        "pruned_stretches",
        _STRETCH,
        "from_fence = from_fence - 1",
        "from_segment = from_segment + 1",
        "to_fence = to_fence + 1000",
        "to_segment = to_segment + 1",
        "receipts = receipts + 1",
        "previous_digest = sha256('x')",
        "last_digest = sha256('x')",
        "pruned_at = pruned_at - interval '1 microsecond'",
        "pruned_by = 'somebody'",
        "digest = sha256('x')",
        "resource = resource || '/other'",
    ),
    **_edits(
        "fences",
        "resource = %(resource)s",
        "receipt_count = receipt_count + 1",
        "receipt_count = receipt_count - 1",
        "last_segment = last_segment + 1",
        "last_digest = sha256('x')",
    ),
    **_edits(
        "operations",
        "resource = %(resource)s and fence_token = %(fence)s",
        "pruned_segments = pruned_segments + 1",
        "resource = resource || '/other'",
        "fence_token = fence_token + 1000",
        "operation_root = 'sha256:' || repeat('0', 64)",
        "continues_root = 'sha256:' || repeat('0', 64)",
        "operation_class = 'other'",
        "owner = 'mallory'",
        "lease = 'other'",
        "request_id = 'other'",
        "issued_at = issued_at - 1",
        "grant_digest = sha256('x')",
        "grant_message = 'x'",
        "grant_message = replace(grant_message, owner, 'mallory'), owner = 'mallory'",
    ),
    **_edits(
        "operations",
        "resource = %(resource)s and pruned_segments > 0",
        "pruned_segments = 0",
    ),
    "operations: a row is deleted": [
        "delete from pgfence.operations where resource = %(resource)s and fence_token = %(fence)s"
    ],
    "a receipt is deleted": [f"delete from pgfence.receipts where {_AT}"],
    "the oldest receipts are deleted": [f"delete from pgfence.receipts where {_UNTIL}"],
    "the latest receipts are deleted": [f"delete from pgfence.receipts where {_FROM}"],
    "all receipts are deleted": ["delete from pgfence.receipts where resource = %(resource)s"],
    "two receipts change places": [
        _MOVE.format("-1", "-1", "(fence_token, segment_seq) = (%(fence)s, %(segment)s)"),
        _MOVE.format(
            "%(fence)s", "%(segment)s",
            "(fence_token, segment_seq) = (%(other_fence)s, %(other_segment)s)",
        ),
        _MOVE.format("%(other_fence)s", "%(other_segment)s", "fence_token = -1"),
    ],
    "a receipt that was pruned comes back": [
        "insert into pgfence.receipts"
        " select * from was_pruned where resource = %(resource)s limit 1"
    ],
    "a receipt is made up": ["""
        insert into pgfence.receipts
        select resource, fence_token, segment_seq + 1, operation_root, grant_digest, payload_digest,
               session_role, accepted_at, digest,
               pgfence._receipt_digest(
                   digest, resource, fence_token, segment_seq + 1, operation_root, grant_digest,
                   payload_digest, accepted_at, session_role)
          from pgfence.receipts where resource = %(resource)s
         order by fence_token desc, segment_seq desc limit 1
    """],
    "a stretch is deleted": [f"delete from pgfence.pruned_stretches where {_STRETCH}"],
    "all stretches are deleted": [
        "delete from pgfence.pruned_stretches where resource = %(resource)s"
    ],
}  # fmt: skip


class Chain:
    """The receipts of one resource, in the database and as a list."""

    def __init__(self, number: int, database: Database, workers: list[Worker], dba: Worker):
        self.random = random.Random(SEED + number)
        self.resource = f"chain/{number}"
        self.database, self.workers, self.dba = database, workers, dba
        self.kept: list[tuple[int, int]] = []
        self.pruned: list[tuple[int, int]] = []
        self.roots: dict[int, str] = {}
        self.old = 0

    def own(self) -> None:
        """A new owner, who may have written nothing when the next one comes."""
        worker = self.random.choice(self.workers)
        held = worker.acquire(
            self.resource, continues_root=self.roots[max(self.roots)] if self.roots else ""
        )
        worker.advance(held.token)
        self.roots[held.fence_token] = grant_of(held.token).operation_root
        for segment in range(1, 1 + self.random.choice((0, 1, 1, 2, 3, 5))):
            assert worker.apply(held.token, segment).verdict == "ACCEPTED"
            self.kept.append((held.fence_token, segment))
        worker.release(held.lease)

    def age(self) -> None:
        """The oldest receipts become old enough."""
        self.old = max(self.old, self.random.randint(0, len(self.kept)))
        if self.old:
            age_receipts(self.database, self.resource, last=self.kept[self.old - 1])

    def prune(self) -> None:
        limit = self.random.choice((1, 2, 3, 100))
        superseded = sum(fence < max(self.roots) for fence, _ in self.kept)
        expected = min(limit, self.old, superseded)
        found = self.dba.call(
            "select coalesce(sum(receipts), 0) as receipts"
            " from pgfence.prunable_receipts('1 hour', %s)",
            [self.resource],
        )
        assert found.receipts == min(self.old, superseded)
        gone = self.dba.call(
            "select * from pgfence.prune_receipts(%s, '1 hour', %s)", [self.resource, limit]
        )
        assert (gone.receipts, gone.problem) == (expected, None)
        self.pruned += self.kept[:expected]
        self.kept = self.kept[expected:]
        self.old -= expected

    def assert_whole(self) -> None:
        found = self.dba.call("select * from pgfence.verify_receipts(%s)", [self.resource])
        assert found.problem is None
        assert (found.ok, found.receipts, found.pruned) == (True, len(self.kept), len(self.pruned))
        count = "select total_segments as n from pgfence.position(%s)"
        assert self.dba.call(count, [self.resource]).n == len(self.kept) + len(self.pruned)
        for fence, root in self.roots.items():
            for segment in range(1, 7):
                row = self.dba.call(
                    "select exists (select from pgfence.find_receipt(%(r)s, %(o)s, %(s)s))"
                    " as found,"
                    " pgfence.receipt_was_pruned(%(r)s, %(o)s, %(s)s) as pruned",
                    {"r": self.resource, "o": root, "s": segment},
                )
                at = (fence, segment)
                assert (row.found, row.pruned) == (at in self.kept, at in self.pruned)

    def damage(self, superuser: psycopg.Connection[Any]) -> int:
        """Do every damage, and demand that it shows, also after pruning; how many there were."""
        at, other = self.random.sample(self.kept, 2) if len(self.kept) > 1 else [self.kept[0]] * 2
        stretches = superuser.execute(
            "select from_fence, from_segment from pgfence.pruned_stretches where resource = %s",
            [self.resource],
        ).fetchall()
        stretch = self.random.choice(stretches or [(0, 0)])
        names = ("fence", "segment", "other_fence", "other_segment", "from_fence", "from_segment")
        drawn = dict(zip(names, (*at, *other, *stretch), strict=True), resource=self.resource)
        verify = "select ok, problem from pgfence.verify_receipts(%s)"
        done = 0
        for name, statements in DAMAGES.items():
            superuser.execute("savepoint whole")
            try:
                changed = [superuser.execute(s, drawn).rowcount for s in statements]
            except psycopg.errors.UniqueViolation:
                changed = [0]
            if all(changed):
                done += 1
                ok, problem = superuser.execute(verify, [self.resource]).fetchone() or (None, None)
                assert (ok, bool(problem)) == (False, True), (name, drawn)
                if not name.startswith("operations"):  # pruning notes them anew
                    self._prune_all(superuser)
                    (ok, _) = superuser.execute(verify, [self.resource]).fetchone() or (None, None)
                    assert ok is False, (name, "pruned afterwards", drawn)
            superuser.execute("rollback to whole")
        return done

    def _prune_all(self, superuser: psycopg.Connection[Any]) -> None:
        superuser.execute("savepoint damaged")
        try:
            superuser.execute("select pgfence.prune_receipts(%s, '1 hour')", [self.resource])
        except psycopg.errors.DataException:
            superuser.execute("rollback to damaged")


@pytest.mark.timeout(3600)
def test_r22_every_damage_to_a_chain_shows_and_pruning_hides_none(
    database: Database, keys: Keys
) -> None:
    workers = [Worker.login(database, keys, role) for role in ("worker_a", "worker_b")]
    dba = Worker.login(database, keys, "dba")
    chains = [Chain(number, database, workers, dba) for number in range(CHAINS)]
    for chain in chains:
        chain.own()
        for _ in range(chain.random.randint(8, 16)):
            chain.random.choice((chain.own, chain.own, chain.age, chain.prune, chain.prune))()
            chain.assert_whole()
        while not chain.kept:
            chain.own()
        chain.age()
    assert sum(len(chain.pruned) for chain in chains) > CHAINS

    superuser = database.connect(autocommit=False)
    superuser.execute("create temporary table was_pruned as select * from pgfence.receipts limit 0")
    for table in ("receipts", "pruned_stretches", "fences", "operations"):
        superuser.execute(f"alter table pgfence.{table} disable trigger all")
    done = 0
    for chain in chains:
        superuser.execute(
            "insert into was_pruned (resource, fence_token, segment_seq, operation_root,"
            " grant_digest, payload_digest, session_role, accepted_at, previous_digest, digest)"
            " select resource, from_fence, from_segment, '', '', '', '', pruned_at,"
            " previous_digest, last_digest from pgfence.pruned_stretches"
            " where resource = %s limit 1",
            [chain.resource],
        )
        done += chain.damage(superuser)
    superuser.rollback()
    assert done > 20 * CHAINS
    for chain in chains:
        chain.assert_whole()
