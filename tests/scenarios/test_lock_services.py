"""The same stories, at the lock services that they happened to: real etcd and real Redis."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pgfence
from pgfence.errors import ClaimLostError
from tests.coordinators.conftest import Coordinated
from tests.coordinators.servers import Etcd, Redis
from tests.coordinators.test_faults import expect_regression, lose
from tests.coordinators.way import ways_to
from tests.support import wait_until
from tests.workers import end_lease

RESOURCE = "invoice-batch/2026-07-19"


def write(value: str) -> Any:
    return lambda tx: tx.execute("update invoices set state = %s where id = 1", [value])


def row(coordinated: Coordinated) -> str:
    found = coordinated.database.connect().execute("select state from invoices where id = 1")
    return str(found.fetchall()[0][0])


def receipts(coordinated: Coordinated) -> list[int]:
    """The fences of the accepted segments."""
    found = coordinated.database.connect("auditor").execute(
        "select fence_token from pgfence.receipts order by fence_token, segment_seq"
    )
    return [fence for (fence,) in found.fetchall()]


@pytest.mark.rule("R36", "R37")
def test_etcd_11456_at_etcd_the_waiter_is_told_that_its_session_ended(coordinate: Any) -> None:
    with coordinate("etcd") as coordinated, ThreadPoolExecutor(1) as pool:
        with coordinated.hold("worker_b", RESOURCE):
            waiting = pool.submit(coordinated.hold_once, "worker_a", RESOURCE)
            wait_until(lambda: len(coordinated.keys(RESOURCE)) == 2, "A stands in line")
            coordinated.servers.end_session_of(coordinated.keys(RESOURCE)[1])
        with pytest.raises(ClaimLostError):
            waiting.result()
        assert coordinated.grants() == 1
        assert coordinated.hold_once("worker_a", RESOURCE) == 2


@pytest.mark.rule("R36", "R38")
def test_etcd_9921_at_etcd_no_grant_rests_on_a_lease_that_is_over(coordinate: Any) -> None:
    """One waiter with a short lease is alive all the time, the other one dies while it waits."""
    with coordinate("etcd") as coordinated, ThreadPoolExecutor(2) as pool:
        with coordinated.hold("worker_b", RESOURCE):
            short = pool.submit(coordinated.hold_once, "worker_a", RESOURCE, ttl=6.0)
            wait_until(lambda: len(coordinated.keys(RESOURCE)) == 2, "the first one waits")
            long = pool.submit(coordinated.hold_once, "worker_a", RESOURCE, ttl=60.0)
            wait_until(lambda: len(coordinated.keys(RESOURCE)) == 3, "the second one waits")
            coordinated.servers.end_session_of(coordinated.keys(RESOURCE)[2])
            with pytest.raises(ClaimLostError):
                long.result()
            assert not short.done()
        assert short.result() == 2
        assert coordinated.grants() == 2


@pytest.mark.rule("R10", "R42", "R43")
def test_etcd_10811_at_etcd_a_client_that_is_cut_off_from_it_stops_and_is_refused(
    coordinate: Any,
) -> None:
    with coordinate("etcd") as coordinated, ExitStack() as stack:
        url, ways = stack.enter_context(ways_to(coordinated.servers))
        a = stack.enter_context(coordinated.hold("worker_a", RESOURCE, url=url, ttl=5.0))
        a.apply("A's", write("A's"))
        for way in ways:
            way.partition()
        with coordinated.hold("worker_b", RESOURCE) as b:
            b.apply("B's", write("B's"))
        with pytest.raises(pgfence.NotHeldError):
            a.apply("A's, late", write("A's, late"))
        # PostgreSQL it still reaches, and there it tries without its client.
        assert coordinated.apply("worker_a", a.token, 2).verdict == "STALE_OWNER"
        for way in ways:
            way.heal()
        assert row(coordinated) == "B's"
        assert receipts(coordinated) == [a.fence_token, b.fence_token]


@pytest.mark.rule("R10", "R51")
def test_etcd_11429_at_etcd_after_the_first_write_of_the_new_master_none_of_the_old_one_s(
    coordinate: Any,
) -> None:
    with coordinate("etcd") as coordinated, coordinated.hold("worker_a", RESOURCE) as a:
        a.apply("1", write("A's"))
        coordinated.servers.end_session_of(coordinated.keys(RESOURCE)[0])
        end_lease(coordinated.database, a.grant.lease)
        with coordinated.hold("worker_b", RESOURCE, ttl=30.0) as b:
            old = [coordinated.apply("worker_a", a.token, 2).verdict]
            for number in range(10):
                b.apply(f"{number}", write("B's"))
                old.append(coordinated.apply("worker_a", a.token, 2).verdict)
        # Before B writes A has no lease any more; from then on it is stale, whatever it believes.
        assert old == ["NOT_HELD", *["STALE_OWNER"] * 10]
        assert receipts(coordinated) == [1, *[2] * 10]


@pytest.mark.rule("R37")
def test_etcd_16028_at_etcd_a_restored_snapshot_is_named_with_both_numbers(
    coordinate: Any, tmp_path: Path
) -> None:
    with Etcd() as servers, coordinate("etcd", servers) as coordinated:
        coordinated.hold_once("worker_a", RESOURCE)
        servers.save(tmp_path / "snapshot")
        lost = lose(coordinated, 10, lambda: servers.restore(tmp_path / "snapshot"))
        expect_regression(coordinated, *lost)


@pytest.mark.rule("R36", "R40")
def test_redis_py_1031_at_redis_the_release_of_an_expired_owner_leaves_the_next_key_alone(
    coordinate: Any,
) -> None:
    with coordinate("redis") as coordinated:
        with coordinated.hold("worker_a", RESOURCE) as a:
            coordinated.servers.end_session_of(coordinated.keys(RESOURCE)[0])
            end_lease(coordinated.database, a.grant.lease)
            b = coordinated.hold("worker_b", RESOURCE)
            lease = b.__enter__()
            key = coordinated.keys(RESOURCE)
        # A has released what it believed to have.
        assert a.fence_token < lease.fence_token
        assert coordinated.keys(RESOURCE) == key
        lease.apply("B's", write("B's"))
        b.__exit__(None, None, None)


@pytest.mark.rule("R35", "R40")
def test_redisson_4822_at_redis_after_it_has_lost_everything_all_can_lock_again(
    coordinate: Any,
) -> None:
    """Redis comes back with nothing, as a replica that had nothing yet."""
    with Redis() as servers, coordinate("redis", servers) as coordinated:
        with coordinated.hold("worker_a", RESOURCE) as a:
            a.apply("A's", write("A's"))
            servers.restart()
            end_lease(coordinated.database, a.grant.lease)
            with coordinated.hold("worker_b", RESOURCE, ttl=30.0) as b:
                b.apply("B's", write("B's"))
                assert coordinated.apply("worker_a", a.token, 2).verdict == "STALE_OWNER"
        with coordinated.hold("worker_a", RESOURCE) as again:
            again.apply("A's again", write("A's again"))
        assert (
            receipts(coordinated) == [a.fence_token, b.fence_token, again.fence_token] == [1, 2, 3]
        )
