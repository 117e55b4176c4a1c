"""Every driver with the registry in another database: status proofs instead of a look (R13)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgfence import State, errors
from tests.conformance.conftest import RESOURCE, SETTLE, Connect, states
from tests.conformance.drivers import Driver, Lease
from tests.conformance.test_hold import wait_for_state
from tests.proxy import proxy_to
from tests.support import PATIENCE, Database, wait_until
from tests.workers import as_owner, fence_row, proof_of

pytestmark = pytest.mark.parametrize("route", ["elsewhere"], indirect=True)


def settle(invoice: int, state: str = "settled") -> Any:
    return lambda execute: execute(SETTLE, invoice, state)


def issued_at(lease: Lease) -> int:
    """When the lease's latest proof was issued."""
    return proof_of(lease.shown.token).issued_at


def test_r21_a_new_owner_has_raised_the_fence_before_it_can_read(
    connect: Connect, served: Database
) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        row = fence_row(served, RESOURCE)
        assert (row.highest_fence, row.last_segment) == (lease.fence_token, 0)


def test_r13_r35_segments_are_applied_with_proofs_that_are_renewed(
    connect: Connect, served: Database
) -> None:
    with connect().hold(RESOURCE, operation="settle", ttl=3) as lease:
        first = issued_at(lease)
        assert lease.apply({"page": 1}, settle(1)).segment_seq == 1
        wait_until(lambda: issued_at(lease) > first + 3_000_000, "renewed more than once")
        again = lease.apply({"page": 2}, settle(2))
        assert (again.fence_token, again.segment_seq) == (lease.fence_token, 2)
    assert [states(served)[invoice] for invoice in (1, 2)] == ["settled", "settled"]


def test_r42_a_silent_registry_is_ownership_unknown_though_the_database_answers(
    connect: Connect, served: Database, registered: Database
) -> None:
    with proxy_to(registered.dsn("worker_a")) as proxy:
        fence = connect(registry_dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=3) as lease:
            lease.apply({"page": 1}, settle(1))
            proxy.close()
            wait_for_state(lease, State.OWNERSHIP_UNKNOWN)
            with pytest.raises(errors.OwnershipUnknownError):
                lease.apply({"page": 2}, settle(2))
            assert fence.position(RESOURCE).last_segment == 1
            wait_for_state(lease, State.EXPIRED)


def test_r39_after_a_failover_of_the_database_the_same_owner_goes_on_with_a_later_proof(
    connect: Connect, served: Database
) -> None:
    with connect().hold(RESOURCE, operation="settle", ttl=30) as lease:
        lease.apply({"page": 1}, settle(1))
        as_owner(served, "update pgfence.configuration set timeline = 'FFFFFFFF'")
        with pytest.raises(errors.RebindRequiredError):
            lease.apply({"page": 2}, settle(2))
        lease.wait_held(PATIENCE)
        assert lease.apply({"page": 2}, settle(2)).segment_seq == 2


def test_r39_a_new_owner_takes_over_a_database_that_was_promoted(
    connect: Connect, served: Database
) -> None:
    as_owner(served, "update pgfence.configuration set timeline = 'FFFFFFFF'")
    with connect().hold(RESOURCE, operation="settle", ttl=30) as lease:
        assert lease.apply({"page": 1}, settle(1)).segment_seq == 1


def test_r13_a_caller_s_own_transaction_uses_the_proof_of_the_lease(
    connect: Connect, driver: Driver, served: Database
) -> None:
    fence = connect()
    with (
        fence.hold(RESOURCE, operation="settle") as lease,
        driver.transaction(served.dsn("worker_a")) as (conn, execute),
    ):
        itself: Any = vars(lease)["_lease"]  # not the suite's wrapper
        assert fence.apply(conn, itself, 1, {"page": 1}).verdict == "ACCEPTED"
        settle(1)(execute)
    assert states(served)[1] == "settled"


def test_r13_without_the_registry_nothing_is_granted(driver: Driver, served: Database) -> None:
    fence = driver.connect(served.dsn("worker_a"))
    with (
        pytest.raises(errors.RegistryElsewhereError),
        fence.hold(RESOURCE, operation="settle"),
    ):
        pytest.fail("held")
    fence.close()


def test_r13_a_database_that_has_its_own_registry_does_not_take_another(
    driver: Driver, registered: Database
) -> None:
    dsn = registered.dsn("worker_a")
    with pytest.raises(errors.InvalidArgumentError, match="leave out registry"):
        driver.connect(dsn, registry=dsn)


def test_r54_a_grant_for_another_database_is_not_used(
    connect: Connect, registered: Database
) -> None:
    with psycopg.connect(registered.dsn("dba")) as dba:
        dba.execute("select pgfence.place('invoice-batch/', 'archive')")
    with (
        pytest.raises(errors.WrongAudienceError),
        connect().hold(RESOURCE, operation="settle"),
    ):
        pytest.fail("held")


def test_r13_a_lease_that_no_proof_could_show_is_not_asked_for(connect: Connect) -> None:
    with (
        pytest.raises(errors.InvalidArgumentError, match="more than 0.3 seconds"),
        connect().hold(RESOURCE, operation="settle", ttl=0.3),
    ):
        pytest.fail("held")
