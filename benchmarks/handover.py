"""How long a resource is nobody's: from one owner's end to the next one's first accepted write.

pgfence beside the locks of etcd and ZooKeeper, whose next owner writes to the same PostgreSQL
without any fence. Owners are threads of one process, or processes where one is killed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kazoo.client import KazooClient

import pgfence
from benchmarks import setting
from benchmarks.figures import Figure
from benchmarks.measure import Figures, Say, in_turn
from benchmarks.setting import WORKER, Sizes
from pgfence.clock import monotonic
from pgfence.coordinators import etcd
from pgfence.coordinators.protocol import Patience
from pgfence.tokens import write_key
from tests import support
from tests.coordinators.servers import Etcd, ZooKeeper
from tests.registry import registry_process

RESOURCE = "batch/0"
WRITE = "update free_invoices set settled = settled + 1 where id = 0"
GUARDED_WRITE = "update invoices set settled = settled + 1 where id = 0"
#: Seconds that a lease lasts whose owner was killed; etcd knows whole seconds only.
TTL = 2
#: Of all others: longer than any of them holds.
LONG_TTL = 30
#: Seconds that a waiter is given.
PATIENCE = 60.0
#: Seconds in which a waiter comes to stand in line.
IN_LINE = 0.03


class Owner(ABC):
    """Somebody who takes a resource, writes, and gives it back."""

    @abstractmethod
    def take(self) -> None:
        """Wait for the resource."""

    @abstractmethod
    def write(self) -> None:
        """One write that is accepted and committed."""

    @abstractmethod
    def release(self) -> None:
        """Give it back."""

    @abstractmethod
    def close(self) -> None:
        """Close its connections."""


class PgfenceOwner(Owner):
    """By pgfence, with PostgreSQL alone."""

    def __init__(self, dsn: str, ttl: float) -> None:
        self._fence = pgfence.connect(dsn)
        self._ttl = ttl
        self._held = ExitStack()
        self._lease: pgfence.Lease | None = None

    def take(self) -> None:
        self._lease = self._held.enter_context(
            self._fence.hold(RESOURCE, operation="settle", ttl=self._ttl, timeout=PATIENCE)
        )

    def write(self) -> None:
        assert self._lease is not None  # noqa: S101
        self._lease.apply({"page": 1}, lambda tx: tx.execute(GUARDED_WRITE))

    def release(self) -> None:
        self._held.close()

    def close(self) -> None:
        self._fence.close()


class EtcdOwner(Owner):
    """By a lock of etcd's: the key that was created first."""

    def __init__(self, dsn: str, url: str, ttl: float) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._ttl = ttl
        self._claimant = etcd.claimant(url)
        self._claim: Any = None

    def take(self) -> None:
        patience = Patience(monotonic() + PATIENCE, monotonic)
        self._claim = self._claimant.claim(
            "/bench", f"{os.getpid()}-{id(self)}", self._ttl, patience
        )

    def write(self) -> None:
        self._conn.execute(WRITE)

    def release(self) -> None:
        self._claim.release()

    def close(self) -> None:
        self._conn.close()


class ZooKeeperOwner(Owner):
    """By the lock recipe of ZooKeeper's, as kazoo has it."""

    def __init__(self, dsn: str, url: str, ttl: float) -> None:
        self._conn = psycopg.connect(dsn, autocommit=True)
        self._client = KazooClient(url.removeprefix("zookeeper://"), timeout=ttl)
        self._client.start()
        self._lock = self._client.Lock("/bench", f"{os.getpid()}-{id(self)}")

    def take(self) -> None:
        self._lock.acquire(timeout=PATIENCE)

    def write(self) -> None:
        self._conn.execute(WRITE)

    def release(self) -> None:
        self._lock.release()

    def close(self) -> None:
        self._client.stop()
        self._client.close()
        self._conn.close()


def owner(kind: str, dsn: str, place: str, ttl: float) -> Owner:
    """One of the three. ttl: seconds that its lease or session lasts without being renewed."""
    if kind == "pgfence":
        return PgfenceOwner(dsn, ttl)
    return EtcdOwner(dsn, place, ttl) if kind == "etcd" else ZooKeeperOwner(dsn, place, ttl)


def handover(template: support.Database, sizes: Sizes, say: Say) -> Figures:
    """From a release, and from the end of a dead owner's lease, to the next one's first write."""
    try:
        lock_services = {"etcd": Etcd(), "zookeeper": ZooKeeper()}
    except pytest.skip.Exception as missing:
        say(f"handover is left out: {missing}")
        return {}
    database = setting.copy_of(template, "handover")
    dsn = database.dsn(WORKER)
    with ExitStack() as stack:
        places = {"pgfence": ""} | {
            kind: stack.enter_context(servers).url() for kind, servers in lock_services.items()
        }
        stack.enter_context(signing(database))
        released: dict[str, list[list[float]]] = {kind: [] for kind in places}
        ended: dict[str, list[float]] = {kind: [] for kind in places}

        def new_owner(kind: str, place: str) -> Owner:
            made = owner(kind, dsn, place, LONG_TTL)
            stack.callback(made.close)
            return made

        def after_release(kind: str, place: str) -> Callable[[], float]:
            pair = [new_owner(kind, place) for _ in range(2)]

            def measure() -> float:
                taken = [release_to_write(*pair[:: (-1) ** n]) for n in range(sizes.handovers)]
                released[kind].append(taken)
                return statistics.mean(taken)

            return measure

        def after_end(kind: str, place: str) -> Callable[[], float]:
            waiter = new_owner(kind, place)

            def measure() -> float:
                ended[kind].append(end_to_write(waiter, kind, dsn, place))
                return ended[kind][-1]

            return measure

        for what, way in (("release", after_release), ("end of lease", after_end)):
            ways = {kind: way(kind, place) for kind, place in places.items()}
            in_turn(f"{what} to the next write", "ms", ways, sizes.rounds, say)
    p99 = {kind: [percentile_99(taken) for taken in rounds] for kind, rounds in released.items()}
    figures = {
        f"handover_vs_{kind}_p99": Figure.ratio(p99["pgfence"], p99[kind])
        for kind in ("etcd", "zookeeper")
    }
    for kind in places:
        figures[f"handover_{kind}_mean_ms"] = Figure.of(
            [statistics.mean(taken) for taken in released[kind]]
        )
        figures[f"handover_{kind}_p99_ms"] = Figure.of(p99[kind])
        figures[f"end_of_lease_{kind}_ms"] = Figure.of(ended[kind])
    return figures


@contextmanager
def signing(database: support.Database) -> Iterator[None]:
    """A registry process."""
    with tempfile.TemporaryDirectory(prefix="pgfence-bench-") as folder:
        key = Path(folder, "grant.key")
        write_key(key, support.make_keys().grant)
        dsn = database.dsn("registry")
        with registry_process(dsn, key, Path(folder, "log")) as process:
            process.wait_for("started")
            yield


def release_to_write(one: Owner, other: Owner) -> float:
    """Milliseconds from the one's release to the other's first write."""
    one.take()
    one.write()
    return writing(other, one.release)


def end_to_write(waiter: Owner, kind: str, dsn: str, place: str) -> float:
    """Milliseconds from the end of a lease, whose owner was killed, to the waiter's first write.

    The owner is killed when it has taken the resource: the lease, or the session, then lasts `TTL`.
    When it began is known no better than that it was after the owner had asked, so what asking took
    is in it: counted from the answer, a waiter may write before the end.
    """
    script = (
        "import os, time, signal; from benchmarks import handover\n"
        f"owner = handover.owner({kind!r}, {dsn!r}, {place!r}, {TTL})\n"
        "asked_at = time.monotonic(); owner.take()\n"
        "print(asked_at, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False
    )
    ends_at = float(killed.stdout) + TTL
    return writing(waiter, lambda: time.sleep(max(0.0, ends_at - time.monotonic())), ends_at)


def writing(waiter: Owner, free: Callable[[], object], since: float | None = None) -> float:
    """Milliseconds from `since`, else from when `free` is called, to the waiter's write."""
    wrote_at: list[float] = []

    def wait() -> None:
        waiter.take()
        waiter.write()
        wrote_at.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    if since is None:
        time.sleep(IN_LINE)
    since = since or time.monotonic()
    free()
    thread.join()
    waiter.release()
    return 1000 * (wrote_at[0] - since)


def percentile_99(values: list[float]) -> float:
    """What 99 of 100 values do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[98]
