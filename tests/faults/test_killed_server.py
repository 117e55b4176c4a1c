"""kill -9 of the server, or of one of its backends, at random moments under eight workers.

The workers use every driver that there is.

After the restart receipts, fences and business rows agree exactly, and nothing that was
acknowledged is lost (R15, R44, R45). PGFENCE_SERVER_KILLS says how often, PGFENCE_SEED from which
seed on.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pgfence
from pgfence import embedded
from pgfence.model.outcome import Outcome
from tests.conformance.drivers import DRIVERS, Execute, Fence
from tests.registry import registry
from tests.support import (
    PATIENCE,
    Database,
    Keys,
    TestServer,
    create_guarded_database,
    create_login_roles,
    fast_folder,
    free_ports,
    unavailable,
    wait_until,
)

KILLS = int(os.environ.get("PGFENCE_SERVER_KILLS", "4"))
SEED = int(os.environ.get("PGFENCE_SEED", "44"))
WORKERS, RESOURCES = 8, 4
ROW = "insert into effects (job, fence, segment, worker) values ($1, $2, $3, $4)"
RECEIPTS = "select resource, fence_token, segment_seq from pgfence.receipts"
EFFECTS = "select 'job/' || job, fence, segment from effects"
#: Fence rows that do not stand where their receipts end.
ENDS = """
    select f.resource, f.highest_fence, f.last_segment, f.receipt_count, r.*
      from pgfence.fences as f
     cross join lateral (
           select count(*) as receipts, max(r.fence_token) as fence,
                  coalesce(max(r.segment_seq) filter (where r.fence_token = f.highest_fence), 0)
                      as segment
             from pgfence.receipts as r where r.resource = f.resource) as r
     where (f.receipt_count, f.last_segment) <> (r.receipts, r.segment)
        or r.fence > f.highest_fence
"""


@dataclass
class Book:
    """What the workers were told, in memory that no crash of the server reaches."""

    acknowledged: list[pgfence.Receipt] = field(default_factory=list)
    unknown: list[pgfence.MutationUnknownError] = field(default_factory=list)
    failed: list[tuple[str, int, int]] = field(default_factory=list)

    def wait_for(self, more: int) -> None:
        """Return when so many more segments are acknowledged."""
        goal = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= goal, "the workers work")


@pytest.fixture(scope="module")
def running(bin_dir: Path) -> Iterator[embedded.Server]:
    if os.environ.get("PGFENCE_TEST_DSN"):
        unavailable("a server that is not ours is not killed")
    server = embedded.Server(
        bin_dir,
        # What was written is in the system's memory, which outlives the server: fsync adds nothing.
        settings={"fsync": "off", "max_connections": 100, "restart_after_crash": "on"},
        parent=fast_folder(),
    )
    (server.port,) = free_ports(1)  # nobody takes it while the server is down
    with server:
        yield server


@pytest.fixture
def effects(running: embedded.Server, keys: Keys) -> Iterator[Database]:
    """pgfence and a guarded table in which each segment leaves one row."""
    server = TestServer(running.dsn(), running.log_file)
    create_login_roles(server)
    database = create_guarded_database(server, "effects", keys)
    owner = database.connect("billing_owner")
    owner.execute(
        "create table effects (job text not null, fence bigint not null,"
        " segment bigint not null, worker text not null, primary key (job, fence, segment))"
    )
    owner.execute("grant select, insert on effects to worker_a, worker_b")
    owner.execute("grant select on effects to dba")
    owner.execute("select pgfence.protect('effects', 'job/{job}')")
    yield database
    database.close()


class Worker(threading.Thread):
    """Holds one resource after the other and writes; connects again whenever it has to."""

    def __init__(self, number: int, database: Database, book: Book, stop: threading.Event) -> None:
        self._driver = DRIVERS[number % len(DRIVERS)]
        super().__init__(name=f"worker {number}, {self._driver.name}", daemon=True)
        self._dsn = database.dsn("worker_a" if number % 2 else "worker_b")
        self._job = f"{number % RESOURCES}"
        self._book = book
        self._stop_now = stop

    def run(self) -> None:
        while not self._stop_now.is_set():
            try:
                fence = self._driver.connect(self._dsn)
                try:
                    while not self._stop_now.is_set():
                        self._work(fence)
                finally:
                    fence.close()
            except Exception:  # of as many kinds as there are drivers
                self._stop_now.wait(0.05)  # the server is down, or the lease went with it

    def _work(self, fence: Fence) -> None:
        job = f"job/{self._job}"
        with fence.hold(job, operation="settle", ttl=2.0, timeout=PATIENCE) as lease:
            for at in range(1, 21):
                if self._stop_now.is_set():
                    return
                row = (self._job, lease.fence_token, at, self.name)
                try:
                    receipt = lease.apply(list(row), partial(self._write, row))
                except pgfence.MutationUnknownError as unknown:
                    self._book.unknown.append(unknown)
                    raise
                except Exception:
                    self._book.failed.append((job, lease.fence_token, at))
                    raise
                self._book.acknowledged.append(receipt)

    @staticmethod
    def _write(row: tuple[object, ...], execute: Execute) -> None:
        execute(ROW, *row)


def kill(server: embedded.Server, what: str, chosen: random.Random) -> None:
    """kill -9, and wait until the server takes connections again."""
    if what == "server":
        os.kill(server.pid, signal.SIGKILL)
        server.stop()
        server.start()
        return
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        wait_until(lambda: kill_one_of(conn, chosen), "a worker's backend is killed")
        # All sessions are ended by that, also this one.
        with suppress(psycopg.Error):
            while True:
                conn.execute("select 1")
                time.sleep(0.005)
    wait_until(lambda: _answers(server), "the server has recovered")


def kill_one_of(conn: psycopg.Connection[Any], chosen: random.Random) -> bool:
    """kill -9 to a worker's backend; whether there was one, and it had not ended by itself."""
    busy = conn.execute(
        "select pid from pg_stat_activity where datname = 'effects' and usename like 'worker%'"
    ).fetchall()
    if not busy:
        return False
    try:
        os.kill(chosen.choice(busy)[0], signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _answers(server: embedded.Server) -> bool:
    try:
        psycopg.connect(server.dsn()).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.timeout(120 + 15 * KILLS)
@pytest.mark.rule("R15", "R44", "R45")
def test_r15_r44_r45_after_kill_9_receipts_fences_and_rows_agree_and_nothing_is_lost(
    running: embedded.Server, effects: Database, keys: Keys,
    record_property: Callable[[str, Any], None],
) -> None:  # fmt: skip
    book, stop = Book(), threading.Event()
    chosen = random.Random(SEED)
    workers = [Worker(number, effects, book, stop) for number in range(WORKERS)]
    with registry(effects, keys):
        for worker in workers:
            worker.start()
        for what in itertools.islice(itertools.cycle(["server", "backend"]), KILLS):
            book.wait_for(chosen.randint(1, 60))
            time.sleep(chosen.uniform(0, 0.01))  # somewhere within a segment
            kill(running, what, chosen)
            agree(effects)
        stop.set()
        for worker in workers:
            worker.join(PATIENCE)
            assert not worker.is_alive()
        counts = settled(effects, book)
    record_property(
        "counts",
        {"table": "kill -9", "of": "server and backends", "kills": KILLS,
         "acknowledged": len(book.acknowledged), "unknown": len(book.unknown),
         "accepted": counts["ACCEPTED"], "not applied": counts["PROVEN_NOT_APPLIED"],
         "failed": len(book.failed)},
    )  # fmt: skip
    agree(effects)


def agree(database: Database) -> None:
    """Receipts, fences and business rows say the same, at one moment."""
    with psycopg.connect(database.dsn("dba")) as conn:
        conn.execute("set transaction isolation level repeatable read")
        for one, other in ((RECEIPTS, EFFECTS), (EFFECTS, RECEIPTS)):
            assert conn.execute(f"{one} except {other}").fetchall() == []
        assert conn.execute(ENDS).fetchall() == []
        chains = conn.execute(
            "select v.* from pgfence.fences as f, pgfence.verify_receipts(f.resource) as v"
            " where not v.ok"
        )
        assert chains.fetchall() == []


def settled(database: Database, book: Book) -> Counter[str]:
    """Each unknown is what the database says, once somebody has taken each job over."""
    with pgfence.connect(database.dsn("worker_a")) as fence:
        for number in range(RESOURCES):
            with fence.hold(f"job/{number}", operation="settle", timeout=PATIENCE) as lease:
                lease.advance()
    counts: Counter[str] = Counter()
    with psycopg.connect(database.dsn("dba"), autocommit=True) as conn:
        receipts = {
            (resource, root, segment): digest
            for resource, root, segment, digest in conn.execute(
                "select resource, operation_root, segment_seq, encode(digest, 'hex')"
                " from pgfence.receipts"
            )
        }
        for unknown in book.unknown:
            where = (unknown.resource, unknown.operation_root, unknown.segment_seq)
            outcome = Outcome.from_row(
                conn.execute(
                    "select * from pgfence.reconcile(%s, %s, %s, %s)",
                    [*where, unknown.payload_digest],
                ).fetchone()
                or ()
            )
            counts[outcome.outcome] += 1
            assert outcome.settled
            assert (outcome.receipt.digest if outcome.receipt else None) == receipts.get(where)
        failed = conn.execute(EFFECTS).fetchall()
    for receipt in book.acknowledged:
        where = (receipt.resource, receipt.operation_root, receipt.segment_seq)
        assert receipts[where] == receipt.digest, "an acknowledged segment was lost"
    assert not set(book.failed) & set(failed), "a segment that stands was reported as failed"
    return counts
