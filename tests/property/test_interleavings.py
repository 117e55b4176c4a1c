"""Every order of the steps of short scripts, in the three isolation levels (R9, R51, R52).

Whatever the order: no lower fence commits after a higher one, what a new owner has read changes no
more, business rows and receipts agree, the chain is whole, nobody deadlocks, and no error comes up
that the contract does not name.

With the registry in another database (R13, R21) each script in which the owner changes goes in one
of the levels, in turn; PGFENCE_INTERLEAVINGS=all has each go in all of them.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tests import support
from tests.elsewhere import Owner, use_registry_elsewhere
from tests.property.isolation import Session, Step, orders, run
from tests.support import Database, Keys
from tests.workers import Worker, sign_in_one_session

LEVELS = ["read committed", "repeatable read", "serializable"]
VERDICTS = {
    *("ACCEPTED", "REPLAYED", "ADVANCED", "PAYLOAD_CONFLICT", "SEGMENT_GAP", "STALE_OWNER"),
    *("NOT_HELD", "NOT_OWNER", "STALE_POLICY", "PAUSED", "WAIT", "HELD"),
}
# serialization failure, failed transaction, not admitted, lease ended at COMMIT, paused at request
ERRORS = {"40001", "25P02", "PF201", "PF203", "PF110", "PF302"}
_numbers = itertools.count(1)

ROLES = {"old": "worker_a", "twin": "worker_a", "new": "worker_b"}


class Stage:
    """One resource with an owner that has written segment 1, and the players of a script."""

    def __init__(self, database: Database, keys: Keys) -> None:
        self.database = database
        self.workers = {
            player: Worker.login(database, keys, role) for player, role in ROLES.items()
        }
        sign_in_one_session(database, self.workers.values())
        self.dba = database.connect()
        self.dba.execute("set role pgfence_owner")
        #: Everybody's session at the registry.
        self.at_registry, self.registry_dba = self.workers, self.dba
        self.observer = database.connect()
        owner = database.connect("billing_owner")
        owner.execute("create table batch (id text primary key, fence bigint, writes integer)")
        owner.execute("grant select, update on batch to worker_a, worker_b")
        self._owner = owner

    def protect(self) -> None:
        """Guard the rows of as many resources as there will be runs."""
        with psycopg.connect(self.database.dsn(), autocommit=True) as superuser:
            superuser.execute(
                "insert into batch select n::text, null, 0 from generate_series(1, 50000) as n"
            )
        self._owner.execute("select pgfence.protect('batch', 'batch/{id}')")

    def set(self, level: str) -> None:
        """A new resource for the next run."""
        self.level = level
        self.id = str(next(_numbers))
        self.resource = f"batch/{self.id}"
        for worker in self.workers.values():
            worker.conn.execute("rollback")
        self.tokens: dict[str, Any] = {}
        #: The new owner's fence, and what it read: how often the row was written.
        self.read: tuple[int, int] | None = None
        held = self.at_registry["old"].acquire(self.resource)
        self.tokens["old"] = self.tokens["twin"] = held
        with self.workers["old"].transaction():
            verdict = self.workers["old"].apply(held.token, 1, "1", self.proof("old"))
            assert verdict.verdict == "ACCEPTED"

    def proof(self, player: str) -> str | None:
        """What shows that the player's grant is held, where no look can."""
        return None

    # steps, by the player's name

    def begin(self, player: str) -> Step:
        def step() -> str:
            conn = self.workers[player].conn
            conn.execute(f"begin isolation level {self.level}")
            conn.execute("select count(*) from batch")  # takes the snapshot
            return "begun"

        return step

    def commit(self, player: str) -> Step:
        return lambda: self._statement(player, "commit")

    def rollback(self, player: str) -> Step:
        return lambda: self._statement(player, "rollback")

    def savepoint(self, player: str) -> Step:
        return lambda: self._statement(player, "savepoint s")

    def rollback_to(self, player: str) -> Step:
        return lambda: self._statement(player, "rollback to s")

    def _statement(self, player: str, statement: str) -> str:
        self.workers[player].conn.execute(statement)
        return statement

    def apply(self, player: str, segment: int, payload: str | None = None) -> Step:
        """fenced_apply and the write; in a transaction of its own where none is open."""

        def step() -> str:
            if player not in self.tokens:
                return "WAIT"
            worker = self.workers[player]
            if worker.conn.info.transaction_status != TransactionStatus.IDLE:
                return write(worker)
            with worker.transaction(self.level):
                return write(worker)

        def write(worker: Worker) -> str:
            held = self.tokens[player]
            verdict = worker.apply(held.token, segment, payload or str(segment), self.proof(player))
            if verdict.verdict == "ACCEPTED":
                worker.conn.execute(
                    "update batch set fence = %s, writes = writes + 1 where id = %s",
                    [held.fence_token, self.id],
                )
            return str(verdict.verdict)

        return step

    def write_anyway(self, player: str) -> Step:
        def step() -> str:
            self.workers[player].conn.execute(
                "update batch set fence = 0, writes = 0 where id = %s", [self.id]
            )
            return "written"

        return step

    def advance(self, player: str) -> Step:
        def step() -> str:
            if player not in self.tokens:
                return "WAIT"
            token = self.tokens[player].token
            return str(self.workers[player].advance(token, self.proof(player)).verdict)

        return step

    def acquire(self, player: str) -> Step:
        """Ask, and look at the row if it is granted."""

        def step() -> str:
            answer = self.at_registry[player].acquire(self.resource, f"{player}-{self.id}")
            if answer.state != "HELD":
                return str(answer.state)
            return self.take_over(player, answer)

        return step

    def take_over(self, player: str, held: Any) -> str:
        """What a new owner does first."""
        self.tokens[player] = held
        if self.read is None:
            row = self.workers[player].call("select writes from batch where id = %s", [self.id])
            self.read = held.fence_token, row.writes
        return str(held.state)

    def release(self, player: str) -> Step:
        return lambda: str(self.at_registry[player].release(self.tokens[player].lease).state)

    def renew(self, player: str) -> Step:
        return lambda: str(self.at_registry[player].renew(self.tokens[player].lease).state)

    def expire(self) -> Step:
        def step() -> str:
            self.registry_dba.execute(
                "update pgfence_registry.grants set lease_ends_at = clock_timestamp()"
                " where resource = %s and owner = 'worker-a'",
                [self.resource],
            )
            return "changed"

        return step

    def pause(self) -> Step:
        return lambda: self._change(
            "update pgfence.fences set paused_because = 'a test' where resource = %s", self.resource
        )

    def new_policy(self) -> Step:
        return lambda: self._change("select pgfence.set_policy(%s, null)", self.resource)

    def bump(self) -> Step:
        return lambda: self._change("update pgfence.configuration set version = version + %s", 1)

    def _change(self, statement: str, *parameters: Any) -> str:
        self.dba.execute(statement, parameters)
        return "changed"

    def session(self, player: str, steps: list[Step]) -> Session:
        conn = self.dba if player == "dba" else self.workers[player].conn
        return Session(conn.info.backend_pid, steps)

    def check(self, outcomes: list[str]) -> None:
        """What must hold whatever the order was."""
        for worker in self.workers.values():
            worker.conn.execute("rollback")
        known = VERDICTS | ERRORS | {"begun", "commit", "rollback", "savepoint s", "rollback to s"}
        known |= {"changed", "RELEASED", "EXPIRED", "SUPERSEDED", "SIGNING"}
        assert set(outcomes) <= known, outcomes
        row = self.observer.execute(
            "select b.fence, b.writes, f.highest_fence, f.last_segment, f.receipt_count,"
            " (select max(fence_token) from pgfence.receipts where resource = f.resource),"
            " (select count(*) from pgfence.receipts where resource = f.resource),"
            " (select ok from pgfence.verify_receipts(f.resource))"
            " from pgfence.fences as f, batch as b where f.resource = %s and b.id = %s",
            [self.resource, self.id],
        ).fetchone()
        assert row is not None
        fence, writes, highest, last, counted, latest, receipts, chain = row
        assert chain, outcomes
        assert counted == receipts, outcomes
        assert writes == receipts - 1, outcomes  # segment 1 was applied without a row
        assert highest >= latest, outcomes
        assert fence in (latest, None), outcomes
        assert last == 0 or highest == latest, outcomes
        if self.read is not None:
            new_fence, read = self.read
            own = self.observer.execute(
                "select count(*) from pgfence.receipts where resource = %s and fence_token >= %s",
                [self.resource, new_fence],
            ).fetchone()
            assert own is not None
            assert writes == read + own[0], f"what the new owner had read has changed: {outcomes}"


class StageElsewhere(Stage):
    """With the registry in another database, where each has a session of its own."""

    def __init__(self, database: Database, registry: Database, keys: Keys) -> None:
        super().__init__(database, keys)
        use_registry_elsewhere(database, registry)
        self.owners = {
            player: Owner(keys, worker, Worker.login(registry, keys, ROLES[player]))
            for player, worker in self.workers.items()
        }
        self.at_registry = {player: owner.registry for player, owner in self.owners.items()}
        sign_in_one_session(registry, self.at_registry.values())
        self.registry_dba = registry.connect()
        self.registry_dba.execute("set role pgfence_owner")
        self.proofs: dict[str, str] = {}

    def set(self, level: str) -> None:
        self.proofs.clear()
        super().set(level)

    def proof(self, player: str) -> str | None:
        """The first one of the lease; it counts for longer than a run takes."""
        lease = self.tokens[player].lease
        if lease not in self.proofs:
            self.proofs[lease] = self.owners[player].prove(lease)
        return self.proofs[lease]

    def take_over(self, player: str, held: Any) -> str:
        """It advances before it reads (R21)."""
        self.tokens[player] = held
        verdict = self.advance(player)()
        return super().take_over(player, held) if verdict == "ADVANCED" else verdict


Script = Callable[[Stage], dict[str, list[Step]]]

SCRIPTS: dict[str, Script] = {
    "the old owner writes while its lease ends and the new one writes": lambda s: {
        "old": [s.begin("old"), s.apply("old", 2), s.commit("old")],
        "dba": [s.expire()],
        "new": [s.acquire("new"), s.apply("new", 1)],
    },
    "the old owner has an old snapshot": lambda s: {
        "old": [s.begin("old"), s.apply("old", 2), s.commit("old")],
        "twin": [s.release("twin")],
        "new": [s.acquire("new"), s.advance("new")],
    },
    "two instances of an owner apply the same segment": lambda s: {
        "old": [s.begin("old"), s.apply("old", 2), s.commit("old")],
        "twin": [s.begin("twin"), s.apply("twin", 2), s.commit("twin")],
    },
    "two instances apply the same segment with other payloads": lambda s: {
        "old": [s.begin("old"), s.apply("old", 2, "one"), s.commit("old")],
        "twin": [s.begin("twin"), s.apply("twin", 2, "two"), s.commit("twin")],
    },
    "one instance replays what another has not committed yet": lambda s: {
        "old": [s.begin("old"), s.apply("old", 2), s.rollback("old")],
        "twin": [s.begin("twin"), s.apply("twin", 2), s.commit("twin")],
    },
    "two instances apply segments in order": lambda s: {
        "old": [s.apply("old", 2), s.apply("old", 4)],
        "twin": [s.begin("twin"), s.apply("twin", 3), s.commit("twin")],
    },
    "the owner releases while a segment is open and a waiter asks": lambda s: {
        "old": [s.begin("old"), s.apply("old", 2), s.release("old"), s.commit("old")],
        "new": [s.acquire("new"), s.acquire("new"), s.apply("new", 1)],
    },
    "the owner renews in a transaction while its lease is taken for ended": lambda s: {
        "old": [s.begin("old"), s.renew("old"), s.apply("old", 2), s.commit("old")],
        "dba": [s.expire()],
        "new": [s.acquire("new")],
    },
    "an instance renews while another has a segment open": lambda s: {
        "old": [s.begin("old"), s.apply("old", 2), s.commit("old")],
        "twin": [s.renew("twin"), s.renew("twin")],
        "new": [s.acquire("new")],
    },
    "the policy changes while a segment is open": lambda s: {
        "old": [s.begin("old"), s.apply("old", 2), s.apply("old", 3), s.commit("old")],
        "dba": [s.new_policy(), s.new_policy()],
    },
    "the configuration changes while two instances apply": lambda s: {
        "old": [s.begin("old"), s.apply("old", 2), s.commit("old")],
        "twin": [s.apply("twin", 2)],
        "dba": [s.bump()],
    },
    "the resource is paused while a segment is open": lambda s: {
        "old": [s.begin("old"), s.apply("old", 2), s.commit("old")],
        "dba": [s.pause()],
        "new": [s.acquire("new")],
    },
    "a savepoint takes the admission back": lambda s: {
        "old": [
            s.begin("old"),
            s.savepoint("old"),
            s.apply("old", 2),
            s.rollback_to("old"),
            s.write_anyway("old"),
            s.commit("old"),
        ],
        "twin": [s.apply("twin", 2)],
    },
    "a refused owner writes anyway": lambda s: {
        "old": [s.begin("old"), s.apply("old", 5), s.write_anyway("old"), s.commit("old")],
        "twin": [s.begin("twin"), s.apply("twin", 2), s.commit("twin")],
    },
    "an admission is of no use to another session": lambda s: {
        "old": [s.begin("old"), s.apply("old", 2), s.commit("old")],
        "twin": [s.begin("twin"), s.write_anyway("twin"), s.commit("twin")],
    },
    "three instances and a new owner": lambda s: {
        "old": [s.apply("old", 2)],
        "twin": [s.apply("twin", 2), s.release("twin")],
        "new": [s.acquire("new"), s.apply("new", 1)],
        "dba": [s.expire()],
    },
}


@pytest.fixture(scope="module")
def stage(template: Database, keys: Keys) -> Iterator[Stage]:
    with support.copied(template, f"pgfence_interleavings_{next(_numbers)}") as database:
        stage = Stage(database, keys)
        stage.protect()
        yield stage


@pytest.fixture(scope="module")
def stage_elsewhere(
    template: Database, registry_template: Database, keys: Keys
) -> Iterator[StageElsewhere]:
    name = f"pgfence_interleavings_{next(_numbers)}"
    with (
        support.copied(template, name) as database,
        support.copied(registry_template, f"{name}_registry") as registry,
    ):
        stage = StageElsewhere(database, registry, keys)
        stage.protect()
        yield stage


@pytest.mark.timeout(600)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", SCRIPTS)
def test_r51_every_order_of_steps_keeps_fences_receipts_and_rows_together(
    stage: Stage, name: str, level: str
) -> None:
    play(stage, name, level)


def play(stage: Stage, name: str, level: str) -> Counter[str]:
    """Every order of the steps of a script; what came of them."""
    seen: Counter[str] = Counter()
    lengths = {player: len(steps) for player, steps in SCRIPTS[name](stage).items()}
    for order in orders(list(lengths.values())):
        stage.set(level)
        sessions = [stage.session(player, steps) for player, steps in SCRIPTS[name](stage).items()]
        run(stage.observer, sessions, order)
        outcomes = [outcome for session in sessions for outcome in session.outcomes]
        stage.check(outcomes)
        seen.update(outcomes)
    assert "40P01" not in seen
    return seen


#: Scripts in which the owner changes. The others are about transactions of one owner.
CHANGES = [name for name in SCRIPTS if "new" in SCRIPTS[name](Stage.__new__(Stage))]


def levels(name: str) -> list[str]:
    """Those in which a script goes with the registry elsewhere."""
    if os.environ.get("PGFENCE_INTERLEAVINGS") == "all":
        return LEVELS
    return [LEVELS[zlib.crc32(name.encode()) % len(LEVELS)]]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "level"), [(name, level) for name in CHANGES for level in levels(name)]
)
def test_r21_r51_so_does_every_order_with_the_registry_in_another_database(
    stage_elsewhere: StageElsewhere, name: str, level: str
) -> None:
    play(stage_elsewhere, name, level)
