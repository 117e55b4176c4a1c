"""Leases by way of each coordinator: from the worker's hold() to the receipt (R34 to R43, R52)."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Literal

import pytest

import pgfence
from pgfence import errors
from pgfence.model.lease import State
from tests.coordinators.conftest import KINDS, RESOURCE, Coordinated
from tests.coordinators.servers import Servers
from tests.coordinators.way import ways_to
from tests.elsewhere import use_registry_elsewhere
from tests.registry import registry
from tests.support import PATIENCE, Database, Keys, free_ports, wait_until
from tests.workers import end_lease, grant_of


@pytest.fixture(params=["postgres", *KINDS])
def coordinated(request: pytest.FixtureRequest, coordinate: Any) -> Iterator[Coordinated]:
    """A guarded database, and workers that ask by way of the coordinator."""
    with coordinate(request.param) as found:
        yield found


def mark_invoice(number: int) -> Any:
    def work(tx: Any) -> None:
        tx.execute("update invoices set state = 'settled' where id = %s", [number])

    return work


def test_r37_segments_are_accepted_with_a_grant_that_names_the_coordinator(
    coordinated: Coordinated,
) -> None:
    with coordinated.hold("worker_a", RESOURCE) as lease:
        lease.apply({"page": 1}, mark_invoice(1))
        lease.apply({"page": 2}, mark_invoice(2))
        grant = grant_of(lease.token)
    assert grant.backend == coordinated.name
    assert grant.backend_revision > 0
    assert coordinated.settled() == 2


def test_r35_owners_take_turns_and_each_fence_is_higher(coordinated: Coordinated) -> None:
    fences: list[int] = []
    tokens: list[int] = []
    alone = threading.Lock()

    def work(role: str) -> None:
        with coordinated.connect(role) as fence:
            for _ in range(3):
                with fence.hold(RESOURCE, operation="settle", ttl=30) as lease:
                    assert alone.acquire(blocking=False), "somebody else holds it too"
                    lease.apply({"page": 1}, mark_invoice(1))
                    fences.append(lease.fence_token)
                    tokens.append(grant_of(lease.token).backend_revision)
                    alone.release()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, role) for role in ("worker_a", "worker_b") * 2]:
            done.result()
    assert fences == list(range(1, 13))
    assert tokens == sorted(set(tokens))


def test_r34_request_that_has_its_grant_gets_the_same_one(coordinated: Coordinated) -> None:
    with coordinated.hold("worker_a", RESOURCE, request_id="request-1") as lease:
        answer = coordinated.ask_again("worker_a", lease)
    assert (answer.state, answer.token) == ("HELD", lease.token)


def test_r36_timeout_names_what_it_waited_for_and_leaves_nothing_behind(
    coordinated: Coordinated,
) -> None:
    with coordinated.hold("worker_a", RESOURCE), pytest.raises(errors.AcquireTimeoutError):
        coordinated.hold_once("worker_b", RESOURCE, timeout=0.2)
    with coordinated.hold("worker_b", RESOURCE, timeout=20) as lease:
        assert lease.fence_token == 2


def test_r10_owner_of_before_is_refused_once_the_next_one_has_written(
    coordinated: Coordinated,
) -> None:
    with coordinated.hold("worker_a", RESOURCE) as lease:
        lease.apply({"page": 1}, mark_invoice(1))
        old = lease.token
    with coordinated.hold("worker_b", RESOURCE) as lease:
        lease.apply({"page": 1}, mark_invoice(1))
    assert coordinated.apply("worker_a", old, 2).verdict == "STALE_OWNER"


def test_r37_worker_that_asks_by_way_of_another_coordinator_is_told_which_one(
    coordinated: Coordinated,
) -> None:
    coordinated.switch("etcd" if coordinated.name == "postgres" else "postgres")
    with (
        pytest.raises(errors.WrongCoordinatorError, match=r"coordinator of this registry is"),
        coordinated.hold("worker_a", RESOURCE),
    ):
        pass


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("kind", KINDS)
def test_r36_tasks_wait_at_the_lock_service_and_leave_nothing_when_they_are_cancelled(
    coordinate: Any, kind: str, driver: Literal["psycopg", "asyncpg"]
) -> None:
    async def work(coordinated: Coordinated) -> int:
        dsn = coordinated.database.dsn("worker_a")
        async with pgfence.connect_async(dsn, driver=driver, coordinator=coordinated.url) as fence:

            async def hold() -> int:
                async with fence.hold(RESOURCE, operation="settle", ttl=30) as lease:
                    return lease.fence_token

            async with fence.hold(RESOURCE, operation="settle", ttl=30) as lease:
                waiting = asyncio.create_task(hold())
                expected = 2 if coordinated.servers.waiters_have_keys else 1
                while len(coordinated.keys(RESOURCE)) < expected:
                    await asyncio.sleep(0.01)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                while len(coordinated.keys(RESOURCE)) > 1:
                    await asyncio.sleep(0.01)
                next_one = asyncio.create_task(hold())
                assert lease.fence_token == 1
            return await next_one

    with coordinate(kind) as coordinated:
        assert asyncio.run(work(coordinated)) == 2
        assert coordinated.keys(RESOURCE) == []


@pytest.mark.rule("R13", "R37")
def test_r13_lock_service_chooses_for_a_registry_in_another_database(
    invoices: Database, registry_database: Database, keys: Keys, running_servers: Any
) -> None:
    servers: Servers = running_servers("etcd")
    use_registry_elsewhere(invoices, registry_database)
    registry_database.connect("dba").execute(
        "select pgfence_registry.switch_coordinator('etcd', true)"
    )
    with (
        registry(registry_database, keys, servers.url()),
        pgfence.connect(
            invoices.dsn("worker_a"),
            registry=registry_database.dsn("worker_a"),
            coordinator=servers.url(),
        ) as fence,
        fence.hold(RESOURCE, operation="settle", ttl=30, timeout=60) as lease,
    ):
        lease.apply({"page": 1}, mark_invoice(1))
        assert grant_of(lease.token).backend == "etcd"


_RUN = [sys.executable, "-c", "from pgfence.cli import main; main()", "run"]


@pytest.mark.parametrize("kind", ["etcd", "zookeeper", "redis"])
def test_r37_pgfence_run_holds_by_way_of_the_lock_service(coordinate: Any, kind: str) -> None:
    with coordinate(kind) as coordinated:
        command = [*_RUN, "--resource", RESOURCE, "--operation", "settle", "--json"]
        dsn = {"PGFENCE_DSN": coordinated.database.dsn("worker_a")}

        def run(**variables: str) -> subprocess.CompletedProcess[str]:
            ask = ["--", "sh", "-c", 'echo "$PGFENCE_GRANT"']
            return subprocess.run(
                [*command, *ask], env=os.environ | dsn | variables,
                capture_output=True, text=True, check=False,
            )  # fmt: skip

        other = run()
        assert other.returncode == 77
        assert f"the coordinator of this registry is {coordinated.name}" in other.stderr
        ended = run(PGFENCE_COORDINATOR=coordinated.url)
        assert ended.returncode == 0, ended.stderr
        assert grant_of(ended.stdout.strip()).backend == coordinated.name
        assert coordinated.keys(RESOURCE) == []
        (port,) = free_ports(1)
        nobody = {"PGFENCE_COORDINATOR": f"{coordinated.name}://127.0.0.1:{port}"}
        if coordinated.name == "redis":  # it is waited for
            command += ["--timeout", "0"]
        assert run(**nobody).returncode == (75 if coordinated.name == "redis" else 69)


@pytest.mark.parametrize("kind", KINDS)
def test_r37_nobody_is_granted_anything_whose_key_does_not_hold(coordinate: Any, kind: str) -> None:
    """A worker that asks in SQL although the lock service has given the resource to another one."""
    with coordinate(kind) as coordinated, coordinated.hold("worker_a", RESOURCE) as lease:
        end_lease(coordinated.database, lease.grant.lease)
        answer = coordinated.request("worker_b", "impostor")
        assert answer.state == "WAIT"
        assert "no registry process has seen" in answer.reason
        coordinated.wait_for_a_round_of_the_registry()
        assert coordinated.request("worker_b", "impostor").state == "WAIT"


@pytest.mark.parametrize("kind", KINDS)
def test_r36_key_that_is_lost_before_the_grant_comes_ends_in_an_error_and_no_grant(
    coordinate: Any, kind: str
) -> None:
    """etcd-io/etcd#11456, from the worker's hold(): the key is had, and lost before the grant."""
    with coordinate(kind) as coordinated, ThreadPoolExecutor(1) as pool:
        with coordinated.no_registry():
            request = {"request_id": "request-1", "ttl": 9.0}
            waiting = pool.submit(coordinated.hold_once, "worker_a", RESOURCE, **request)
            wait_until(lambda: coordinated.keys(RESOURCE) != [], "the key is there")
            coordinated.servers.end_session_of(coordinated.keys(RESOURCE)[0])
            with pytest.raises(errors.ClaimLostError):
                waiting.result()
        coordinated.wait_for_a_round_of_the_registry()
        assert coordinated.grants() == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rule("R41", "R42", "R43")
def test_r42_session_that_ends_takes_the_lease_with_it(coordinate: Any, kind: str) -> None:
    with coordinate(kind) as coordinated, coordinated.hold("worker_a", RESOURCE, ttl=9.0) as lease:
        lease.apply({"page": 1}, mark_invoice(1))
        coordinated.servers.end_session_of(coordinated.keys(RESOURCE)[0])
        wait_until(lambda: lease.state is State.EXPIRED, "the worker knows")
        with pytest.raises(errors.NotHeldError):
            lease.apply({"page": 2}, mark_invoice(2))
        end_lease(coordinated.database, lease.grant.lease)  # rather than wait for it
        with coordinated.hold("worker_b", RESOURCE) as next_one:
            next_one.apply({"page": 1}, mark_invoice(3))
        assert coordinated.apply("worker_a", lease.token, 2).verdict == "STALE_OWNER"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.endswith("-3")])
def test_r36_lease_that_is_over_leaves_its_key_to_the_next_one_while_its_block_goes_on(
    coordinate: Any, kind: str
) -> None:
    with coordinate(kind) as coordinated, coordinated.hold("worker_a", RESOURCE) as lease:
        lease.apply({"page": 1}, mark_invoice(1))
        assert coordinated.keys(RESOURCE) != []
        end_lease(coordinated.database, lease.grant.lease)
        with pytest.raises(errors.NotHeldError):
            lease.apply({"page": 2}, mark_invoice(2))
        with coordinated.hold("worker_b", RESOURCE, timeout=PATIENCE) as next_one:
            next_one.apply({"page": 1}, mark_invoice(3))


def test_r37_lock_service_that_was_not_given_to_the_registry_is_named(
    coordinate: Any, servers: Servers
) -> None:
    with coordinate("postgres") as coordinated:
        coordinated.switch(servers.name, mints=True)
        with (
            pgfence.connect(
                coordinated.database.dsn("worker_a"), coordinator=servers.url()
            ) as fence,
            pytest.raises(errors.AcquireTimeoutError, match="no registry process has seen"),
            fence.hold(RESOURCE, operation="settle", timeout=3),
        ):
            pass
        assert servers.keys(coordinated.place(RESOURCE)) == []


@pytest.mark.parametrize("kind", ["etcd", "zookeeper", "redis"])
def test_r36_who_waits_for_ever_is_told_why(
    coordinate: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While no registry process runs, and where the way to the lock service is cut."""
    with coordinate(kind) as coordinated, ExitStack() as stack:
        url, ways = stack.enter_context(ways_to(coordinated.servers))

        def told(what: str) -> Callable[[], bool]:
            return lambda: any(
                what in record.message and record.levelno == logging.WARNING
                for record in caplog.records
            )

        pool = stack.enter_context(ThreadPoolExecutor(1))
        with coordinated.hold("worker_b", RESOURCE):
            waiting = pool.submit(coordinated.hold_once, "worker_a", RESOURCE, url=url, ttl=60.0)
            if coordinated.servers.waiters_have_keys:
                wait_until(lambda: len(coordinated.keys(RESOURCE)) == 2, "it stands in line")
            for way in ways:
                way.partition()
            wait_until(
                told(f"{coordinated.name} does not answer"), "it says that there is no answer"
            )
            for way in ways:
                way.heal()
        assert waiting.result() == 2
        with coordinated.no_registry():
            waiting = pool.submit(coordinated.hold_once, "worker_a", RESOURCE)
            wait_until(told("no registry process has seen"), "it says what it waits for")
        assert waiting.result() == 3
