"""What becomes of leases when a lock service is cut off, loses its leader, or its data (R37, R42).

PGFENCE_ACQUISITIONS says how many there are while leaders are killed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pgfence import coordinators, errors
from pgfence.cli import app
from pgfence.clock import monotonic
from pgfence.coordinators.protocol import Patience
from pgfence.coordinators.zookeeper import Connection, ZooKeeperClaim
from pgfence.model.lease import State
from tests.coordinators.conftest import KINDS, RESOURCE, Coordinated
from tests.coordinators.servers import Etcd, Redis, Servers, ZooKeeper
from tests.coordinators.way import ways_to
from tests.support import PATIENCE, wait_until
from tests.workers import grant_of

ACQUISITIONS = int(os.environ.get("PGFENCE_ACQUISITIONS", "12"))
#: What a worker hears when its lock service fails; it tries again, with a new request.
FAILURES = (
    errors.AcquireTimeoutError,
    errors.ClaimLostError,
    errors.LockServiceError,
    errors.NotHeldError,
    errors.OwnershipUnknownError,
)


def settle(number: int) -> Callable[[Any], object]:
    return lambda tx: tx.execute("update invoices set state = %s where id = 1", [f"by {number}"])


class Load:
    """Workers that take turns, each with one segment, until there were enough."""

    def __init__(self, coordinated: Coordinated, urls: dict[str, str] | None = None) -> None:
        self._coordinated = coordinated
        self._urls = urls or {coordinated.name: coordinated.url}
        self._lock = threading.Lock()
        self._enough = threading.Event()
        #: Of each accepted segment, in order: fence, coordinator and its token.
        self.accepted: list[tuple[int, str, int]] = []

    def work(self, role: str) -> None:
        """Acquire, write, release, again and again."""
        name = self._coordinated.name
        while not self._enough.is_set():
            try:
                with self._coordinated.connect(role, self._urls[name]) as fence:
                    while not self._enough.is_set():
                        with fence.hold(RESOURCE, operation="settle", ttl=10, timeout=20) as lease:
                            lease.apply({"page": 1}, settle(lease.fence_token))
                            with self._lock:
                                grant = grant_of(lease.token)
                                self.accepted.append(
                                    (lease.fence_token, grant.backend, grant.backend_revision)
                                )
            except FAILURES:
                continue
            except errors.WrongCoordinatorError as error:
                name = error.detail["coordinator"]

    def wait_for(self, count: int, coordinator: str | None = None) -> None:
        """Return when so many segments were accepted, of all or by way of a coordinator."""

        def reached() -> bool:
            with self._lock:
                found = [a for a in self.accepted if coordinator in (None, a[1])]
            return len(found) >= count

        wait_until(reached, f"{count} segments by way of {coordinator or 'any'}", timeout=240)

    def run(self, disturb: Callable[[Load], object]) -> None:
        """Two workers work, and `disturb` is done meanwhile."""
        with ThreadPoolExecutor(2) as pool:
            workers = [pool.submit(self.work, role) for role in ("worker_a", "worker_b")]
            try:
                disturb(self)
            finally:
                self._enough.set()
            for worker in workers:
                worker.result()

    def check(self) -> None:
        """No fence twice, none lower; each write by the owner of its time, receipts whole."""
        fences = [fence for fence, _, _ in self.accepted]
        assert fences == sorted(set(fences))
        assert len({(name, token) for _, name, token in self.accepted}) == len(fences)
        auditor = self._coordinated.database.connect("auditor")
        receipts = auditor.execute(
            "select fence_token from pgfence.receipts where resource = %s order by accepted_at",
            [RESOURCE],
        ).fetchall()
        written = [fence for (fence,) in receipts]
        assert written == sorted(set(written))
        # A segment whose answer was lost with its lease is a receipt all the same.
        assert set(fences) <= set(written)
        sound = auditor.execute("select ok from pgfence.verify_receipts(%s)", [RESOURCE])
        assert sound.fetchall() == [(True,)]


@pytest.mark.rule("R36", "R37", "R51")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("make", [Etcd, ZooKeeper])
def test_r37_no_fence_comes_twice_or_lower_while_leaders_are_killed(
    coordinate: Any, make: type[Etcd | ZooKeeper]
) -> None:
    def kill_leaders(load: Load) -> None:
        for number in range(3):
            load.wait_for((number + 1) * ACQUISITIONS // 4)
            killed = servers.kill_leader()
            load.wait_for(len(load.accepted) + 2)
            servers.start(killed)
            servers.wait_until_ready()
        load.wait_for(ACQUISITIONS)

    with make(3) as servers, coordinate(servers.name, servers) as coordinated:
        load = Load(coordinated)
        load.run(kill_leaders)
        load.check()


@pytest.mark.rule("R37")
@pytest.mark.timeout(900)
def test_r37_fences_rise_and_writes_go_on_while_the_coordinator_is_changed(
    coordinate: Any,
) -> None:
    each = max(3, ACQUISITIONS // 4)

    def change(load: Load) -> None:
        for number, name in enumerate(("postgres", "etcd", "zookeeper", "postgres")):
            if number:
                coordinated.switch(name)
            so_far = sum(a[1] == name for a in load.accepted)
            load.wait_for(so_far + each, name)

    with (
        Etcd() as etcd,
        ZooKeeper() as zookeeper,
        coordinate("postgres", etcd, zookeeper) as coordinated,
    ):
        urls = {"postgres": "postgres", "etcd": etcd.url(), "zookeeper": zookeeper.url()}
        load = Load(coordinated, urls)
        load.run(change)
        load.check()
    turns = [name for _, name, _ in load.accepted]
    assert {"postgres", "etcd", "zookeeper"} == set(turns)
    assert (turns[0], turns[-1]) == ("postgres", "postgres")


def lose(coordinated: Coordinated, count: int, how: Callable[[], object]) -> tuple[int, int, str]:
    """So many acquisitions, which the lock service then forgets: last token, fence and grant."""
    for _ in range(count - 1):
        coordinated.hold_once("worker_a", RESOURCE)
    with coordinated.hold("worker_a", RESOURCE) as lease:
        lease.apply({"page": 1}, settle(1))
        grant = grant_of(lease.token)
    how()
    return grant.backend_revision, grant.fence_token, lease.token


def expect_regression(coordinated: Coordinated, mark: int, fence: int, old: str) -> None:
    """It is named with both numbers, nothing is accepted; one command, and fences go on above."""
    with pytest.raises(errors.PausedError) as caught:
        coordinated.hold_once("worker_b", RESOURCE)
    said = str(caught.value)
    assert "FENCE_REGRESSION" in said
    assert f"after token {mark}" in said
    low = int(said.partition(" gave token ")[2].partition(" ")[0])
    assert low <= mark
    assert coordinated.apply("worker_a", old, 2).verdict == "PAUSED"
    with pytest.raises(errors.PausedError):
        coordinated.hold_once("worker_a", RESOURCE)

    command = ["resume", RESOURCE, "--json", "--dsn", coordinated.database.dsn("dba")]
    assert json.loads(CliRunner().invoke(app, command).stdout)["above"] == fence
    with coordinated.hold("worker_b", RESOURCE) as lease:
        lease.apply({"page": 1}, settle(2))
        assert lease.fence_token > fence
        assert grant_of(lease.token).backend_revision < mark
    assert coordinated.apply("worker_a", old, 2).verdict == "STALE_OWNER"


@pytest.mark.rule("R37")
@pytest.mark.parametrize(("members", "count"), [(1, 100), (3, ACQUISITIONS)])
def test_r37_etcd_restored_from_a_snapshot_is_a_regression_until_it_is_resumed(
    coordinate: Any, tmp_path: Path, members: int, count: int
) -> None:
    """etcd-io/etcd#16028: the cluster keeps its ID; only the revision has fallen."""
    with Etcd(members) as servers, coordinate("etcd", servers) as coordinated:
        coordinated.hold_once("worker_a", RESOURCE)
        servers.save(tmp_path / "snapshot")
        lost = lose(coordinated, count, lambda: servers.restore(tmp_path / "snapshot"))
        expect_regression(coordinated, *lost)


@pytest.mark.rule("R37")
def test_r37_wiped_zookeeper_is_a_regression_until_it_is_resumed(coordinate: Any) -> None:
    with ZooKeeper() as servers, coordinate("zookeeper", servers) as coordinated:
        lost = lose(coordinated, ACQUISITIONS, servers.wipe)
        expect_regression(coordinated, *lost)


@pytest.mark.rule("R37")
def test_r37_registry_says_each_time_that_the_lock_service_fails(
    coordinate: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pgfence.registry")

    def times() -> int:
        return sum('"not seen"' in record.message for record in caplog.records)

    with Redis() as servers, coordinate("redis", servers) as coordinated:
        for outage in (1, 2):
            before = times()
            servers.kill()

            def is_told(outage: int = outage, before: int = before) -> bool:
                coordinated.request("worker_a", f"request-{outage}")
                return times() > before

            wait_until(is_told, f"outage {outage} is told")
            servers.start()
            servers.wait_until_ready()
            coordinated.hold_once("worker_b", "invoice-batch/beside")


@pytest.mark.rule("R36")
def test_r36_zookeeper_s_waiter_goes_on_though_an_operator_deletes_the_resource_s_node(
    coordinate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making the resource's node and a node in it."""
    ask = Connection.ask
    deleted: list[str] = []

    def ask_and_delete(self: Connection, question: str, *arguments: Any, **more: Any) -> Any:
        answer = ask(self, question, *arguments, **more)
        if question == "ensure_path" and not deleted:
            deleted.append(arguments[0])
            coordinated.servers.delete(arguments[0])
        return answer

    monkeypatch.setattr(Connection, "ask", ask_and_delete)
    with coordinate("zookeeper") as coordinated:
        assert coordinated.hold_once("worker_a", RESOURCE, timeout=60) == 1
        assert deleted == [coordinated.place(RESOURCE)]


@pytest.mark.rule("R36")
@pytest.mark.parametrize("answers", [False, True])
def test_r36_closing_waits_for_no_zookeeper_that_does_not_answer(
    running_servers: Callable[[str], Servers], monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """kazoo waits until it says itself that it is not connected any more."""
    with ways_to(running_servers("zookeeper")) as (url, ways):
        connection = Connection(url, 60.0)
        connection.open()
        if answers:
            monkeypatch.setattr("pgfence.coordinators.zookeeper._ANSWER", PATIENCE)
        else:
            monkeypatch.setattr("pgfence.coordinators.zookeeper._ANSWER", 0.2)
            for way in ways:
                way.partition()
        connection.close()
        assert connection._client.connected is not answers


class Restless(Patience):
    """Looks three times, without waiting in between."""

    looks = 3

    def sleep(self, seconds: float) -> None:
        self.looks -= 1

    def left(self) -> float:
        return float(self.looks)


def test_r36_zookeeper_s_waiter_leaves_one_watch_however_often_it_looks(
    running_servers: Callable[[str], Servers], place: str
) -> None:
    url = running_servers("zookeeper").url()
    first = coordinators.claimant(url).claim(place, "first root", 60.0, Restless(inf, monotonic))
    connection = Connection(url, 60.0)
    second = ZooKeeperClaim(connection)
    try:
        with pytest.raises(errors.AcquireTimeoutError):
            second.wait(place, "second root", Restless(inf, monotonic))
        assert [len(found) for found in connection._client._data_watchers.values()] == [1]
    finally:
        second.release()
        first.release()


@pytest.mark.rule("R35", "R40")
def test_r40_redis_that_forgets_costs_waiting_and_no_stale_write(coordinate: Any) -> None:
    """As after a failover to a replica that was behind: the key of the owner is gone."""
    with (
        Redis() as servers,
        coordinate("redis", servers) as coordinated,
        coordinated.hold("worker_a", RESOURCE, ttl=6.0) as lease,
    ):
        lease.apply({"page": 1}, settle(1))
        servers.client.flushall()
        with coordinated.hold("worker_b", RESOURCE) as next_one:
            next_one.apply({"page": 1}, settle(2))
            assert next_one.fence_token > lease.fence_token
            assert lease.state is State.EXPIRED
            assert coordinated.apply("worker_a", lease.token, 2).verdict == "STALE_OWNER"


@pytest.mark.rule("R10", "R42", "R43")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith("-3")])
def test_r42_worker_cut_off_from_the_lock_service_doubts_stops_and_comes_back(
    coordinate: Any, kind: str
) -> None:
    with coordinate(kind) as coordinated, ExitStack() as stack:
        url, ways = stack.enter_context(ways_to(coordinated.servers))
        lease = stack.enter_context(coordinated.hold("worker_a", RESOURCE, url=url, ttl=12.0))
        lease.apply({"page": 1}, settle(1))
        for way in ways:
            way.partition()
        wait_until(lambda: lease.state is State.OWNERSHIP_UNKNOWN, "the worker doubts")
        with pytest.raises(errors.OwnershipUnknownError):
            lease.apply({"page": 2}, settle(2))
        with coordinated.hold("worker_b", RESOURCE) as next_one:
            next_one.apply({"page": 1}, settle(3))
            assert lease.state is State.EXPIRED
            assert coordinated.apply("worker_a", lease.token, 2).verdict == "STALE_OWNER"
        for way in ways:
            way.heal()
        with coordinated.hold("worker_a", RESOURCE, url=url, timeout=60) as again:
            again.apply({"page": 1}, settle(4))
            assert again.fence_token > next_one.fence_token


@pytest.mark.rule("R41", "R42")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith("-3")])
def test_r42_lease_is_confirmed_again_when_the_partition_heals_in_time(
    coordinate: Any, kind: str
) -> None:
    with coordinate(kind) as coordinated, ExitStack() as stack:
        url, ways = stack.enter_context(ways_to(coordinated.servers))
        lease = stack.enter_context(coordinated.hold("worker_a", RESOURCE, url=url, ttl=15.0))
        lease.apply({"page": 1}, settle(1))
        for way in ways:
            way.partition()
        wait_until(lambda: lease.state is State.OWNERSHIP_UNKNOWN, "the worker doubts")
        for way in ways:
            way.heal()
        lease.wait_held(60)
        assert lease.apply({"page": 2}, settle(2)).segment_seq == 2


@pytest.mark.rule("R37", "R53")
def test_r53_lock_service_that_is_down_holds_up_neither_renewing_nor_the_next_one(
    coordinate: Any,
) -> None:
    """The registry cannot look, so it grants nothing new; a lease by way of another one goes on."""
    with Etcd() as servers, coordinate("etcd", servers) as coordinated:
        servers.kill()
        with pytest.raises(errors.LockServiceError):
            coordinated.hold_once("worker_b", RESOURCE)
        coordinated.switch("postgres")
        with coordinated.hold("worker_a", RESOURCE, url="postgres") as lease:
            lease.apply({"page": 1}, settle(1))
        servers.start()
        servers.wait_until_ready()
