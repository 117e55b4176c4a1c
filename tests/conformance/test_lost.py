"""lease.lost and lease.on_lost: a lease that ends without having been released (R41-R43)."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from pgfence import State, errors
from tests.conformance.conftest import RESOURCE, ROUTES, SETTLE, Connect, count, states
from tests.conformance.drivers import Execute, Lease
from tests.conformance.test_hold import wait_for_move, wait_for_state
from tests.proxy import proxy_to
from tests.support import PATIENCE, Database, wait_until
from tests.workers import end_lease, in_background


@pytest.fixture(params=["direct", "elsewhere"])
def route(request: pytest.FixtureRequest) -> str:
    """A pooler changes nothing here, except where a test says so."""
    chosen: str = request.param
    return chosen


def settle(invoice: int, state: str = "settled") -> Any:
    return lambda execute: execute(SETTLE, invoice, state)


class Calls:
    """What `on_lost` called, and how often."""

    def __init__(self, lease: Lease) -> None:
        self.count = 0
        self.called = threading.Event()
        lease.on_lost(self.call)

    def call(self) -> None:
        self.count += 1
        self.called.set()


def test_r42_r43_in_doubt_a_lease_is_not_lost_and_by_the_own_clock_it_is(
    connect: Connect, registered: Database
) -> None:
    with proxy_to(registered.dsn("worker_a")) as proxy:
        fence = connect(registry_dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=4) as lease:
            calls = Calls(lease)
            proxy.close()
            lease.renew_now()
            wait_for_state(lease, State.OWNERSHIP_UNKNOWN)
            assert not lease.lost.is_set()
            assert not calls.called.is_set()
            assert lease.lost.wait(PATIENCE)
            assert lease.state is State.EXPIRED
            assert calls.called.wait(PATIENCE)
        # Releasing it changes nothing: it had been lost.
        assert lease.lost.is_set()
    assert calls.count == 1


def test_r42_a_renewal_that_is_answered_in_the_end_is_no_loss(
    connect: Connect, registered: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "pgfence.client")
    with proxy_to(registered.dsn("worker_a")) as proxy:
        fence = connect(registry_dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=15) as lease:
            calls = Calls(lease)
            proxy.cut_when_used()
            lease.renew_now()
            wait_for_move(caplog, "RENEWING -> OWNERSHIP_UNKNOWN")
            wait_for_move(caplog, "OWNERSHIP_UNKNOWN -> HELD")
            assert not lease.lost.wait(0)
        assert not lease.lost.wait(PATIENCE), "released, so it will not be lost any more"
    assert calls.count == 0


def test_r41_by_the_registry_s_word_a_lease_is_lost(connect: Connect, registered: Database) -> None:
    with connect().hold(RESOURCE, operation="settle", ttl=30) as lease:
        calls = Calls(lease)
        end_lease(registered, lease.grant.lease)
        lease.renew_now()
        assert lease.lost.wait(PATIENCE)
        assert calls.called.wait(PATIENCE)


def test_r41_a_lease_that_somebody_else_released_is_lost(
    connect: Connect, registered: Database
) -> None:
    with connect().hold(RESOURCE, operation="settle", ttl=30) as lease:
        calls = Calls(lease)
        registered.connect("worker_a").execute(
            "select pgfence_registry.release(%s)", [lease.grant.lease]
        )
        lease.renew_now()
        assert lease.lost.wait(PATIENCE)
        assert lease.state is State.RELEASED
        assert calls.called.wait(PATIENCE)


def test_r10_by_a_refusal_a_lease_is_lost_at_once(connect: Connect, registered: Database) -> None:
    with connect("worker_a").hold(RESOURCE, operation="settle", ttl=600) as old:
        calls = Calls(old)
        end_lease(registered, old.grant.lease)
        with connect("worker_b").hold(RESOURCE, operation="settle") as new:
            new.apply({"page": 1}, settle(1, "by B"))
            with pytest.raises(errors.StaleOwnerError):
                old.apply({"page": 1}, settle(1, "by A"))
            assert old.lost.is_set()
            assert calls.called.wait(PATIENCE)
    assert calls.count == 1


def test_what_on_lost_calls_may_fail_and_comes_also_when_it_is_lost_already(
    connect: Connect, registered: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ValueError("cannot be stopped")

    with connect().hold(RESOURCE, operation="settle", ttl=30) as lease:
        lease.on_lost(fails)
        end_lease(registered, lease.grant.lease)
        lease.renew_now()
        assert lease.lost.wait(PATIENCE)
        assert Calls(lease).called.wait(PATIENCE)
        wait_until(lambda: "cannot be stopped" in caplog.text, "the failure is logged")


def test_what_on_lost_cannot_call_to_the_end_is_refused_or_logged(
    connect: Connect, registered: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def must_be_awaited() -> None:
        pytest.fail("nobody awaits it")

    with connect().hold(RESOURCE, operation="settle", ttl=30) as lease:
        for function in (must_be_awaited, partial(must_be_awaited)):
            with pytest.raises(errors.InvalidArgumentError, match="must be awaited"):
                lease.on_lost(function)
        lease.on_lost(lambda: must_be_awaited())
        end_lease(registered, lease.grant.lease)
        lease.renew_now()
        wait_until(
            lambda: "a coroutine that nobody has run" in caplog.text, "the failure is logged"
        )


@pytest.mark.parametrize("route", ROUTES)
def test_r43_what_runs_when_the_lease_is_lost_is_stopped_and_not_written(
    connect: Connect, served: Database, registered: Database
) -> None:
    """It neither runs on until the server notices, nor keeps the next owner waiting."""

    def dawdles(execute: Execute) -> None:
        settle(1)(execute)
        execute("select pg_sleep(600)")

    def lose() -> None:
        wait_until(lambda: count(served, running) == 1, "the statement runs")
        end_lease(registered, lease.grant.lease)
        lease.renew_now()

    running = (
        "select count(*) from pg_stat_activity"
        " where state = 'active' and query = 'select pg_sleep(600)'"
    )
    with connect().hold(RESOURCE, operation="settle", ttl=30) as lease:
        losing = in_background(lose)
        with pytest.raises(errors.LeaseEndedError, match="lost while the work function ran"):
            lease.apply({"page": 1}, dawdles)
        losing.result(PATIENCE)
        assert lease.lost.is_set()
        wait_until(lambda: count(served, running) == 0, "the statement is cancelled")
        with pytest.raises(errors.NotHeldError):
            lease.apply({"page": 1}, settle(1))
    assert states(served)[1] == "open"
    with connect("worker_b").hold(RESOURCE, operation="settle", timeout=PATIENCE) as new:
        assert new.apply({"page": 1}, settle(1)).segment_seq == 1


@pytest.mark.parametrize("use", ["apply", "advance"])
def test_r43_what_waits_for_the_row_lock_is_stopped_when_the_lease_is_lost(
    connect: Connect, served: Database, registered: Database, use: str
) -> None:
    def never(execute: Execute) -> None:
        pytest.fail("work began")

    def lose() -> None:
        wait_until(lambda: count(served, waiting) == 1, "the call waits")
        end_lease(registered, lease.grant.lease)
        lease.renew_now()

    waiting = (
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        " and query like '%pgfence.%' and usename = 'worker_a' and datname = current_database()"
    )
    with connect().hold(RESOURCE, operation="settle", ttl=30) as lease:
        blocker = served.connect("worker_a", autocommit=False)
        proof = lease.shown.token if lease.shown else None
        blocker.execute("select pgfence.fenced_apply(%s, 1, 'one', %s)", [lease.token, proof])
        losing = in_background(lose)
        with pytest.raises(errors.LeaseEndedError):
            lease.apply({"page": 1}, never) if use == "apply" else lease.advance()
        losing.result(PATIENCE)
        assert lease.lost.is_set()
        wait_until(lambda: count(served, waiting) == 0, "the call is cancelled")
        blocker.rollback()


def test_r43_work_that_uses_no_connection_looks_for_itself(
    connect: Connect, served: Database, registered: Database
) -> None:
    def computes(execute: Execute) -> None:
        settle(1)(execute)
        end_lease(registered, lease.grant.lease)
        lease.renew_now()
        assert lease.lost.wait(PATIENCE)

    with (
        connect().hold(RESOURCE, operation="settle", ttl=30) as lease,
        pytest.raises(errors.LeaseEndedError),
    ):
        lease.apply({"page": 1}, computes)
    assert states(served)[1] == "open"
