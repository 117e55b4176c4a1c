"""Every driver with the registry in another database: status proofs instead of a look (R13)."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pgfence import Coordinates, State, errors
from pgfence.client.base import BaseLease
from pgfence.client.protocol import Steps
from pgfence.client.protocol import segments as calls
from tests import rotation_cases as rotation
from tests.conformance.conftest import RESOURCE, SETTLE, Connect, count, states
from tests.conformance.drivers import Driver, Lease
from tests.conformance.test_hold import wait_for_state
from tests.proxy import proxy_to
from tests.registry import registry
from tests.support import PATIENCE, Database, Keys, make_bundle, rotate, wait_until
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


def test_r21_an_owner_that_waits_too_long_for_an_earlier_one_s_transaction_gives_the_lease_back(
    connect: Connect, served: Database, registered: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "limit", lambda _: 0.2)
    held = "select count(*) from pgfence_registry.grants where state = 'HELD'"
    fence = connect()
    with served.connect("worker_a", autocommit=False) as earlier:
        with fence.hold(RESOURCE, operation="settle") as lease:
            proof = lease.shown.token
            earlier.execute("select pgfence.fenced_apply(%s, 1, 'one', %s)", [lease.token, proof])
        with (
            pytest.raises(errors.AcquireTimeoutError, match="transactions of earlier owners"),
            fence.hold(RESOURCE, operation="settle", timeout=0.5),
        ):
            pass
        assert count(registered, held) == 0
        earlier.rollback()
    with fence.hold(RESOURCE, operation="settle", timeout=PATIENCE) as lease:
        assert lease.fence_token == fence_row(served, RESOURCE).highest_fence


def test_r13_r35_segments_are_applied_with_proofs_that_are_renewed(
    connect: Connect, served: Database
) -> None:
    with connect().hold(RESOURCE, operation="settle", ttl=6) as lease:
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
        with fence.hold(RESOURCE, operation="settle", ttl=6) as lease:
            lease.apply({"page": 1}, settle(1))
            proxy.close()
            lease.renew_now()
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


def _nothing(*_: object) -> Steps[None]:
    yield from ()


def test_r45_a_newer_lease_proves_with_its_proof_that_nothing_can_come(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence is where it was, as when the database was put back behind the newer owner."""
    fence = connect()
    with fence.hold(RESOURCE, operation="settle") as old:
        old.apply({"page": 1}, settle(1))
    coordinates = Coordinates(RESOURCE, old.operation_root, 2)
    monkeypatch.setattr(BaseLease, "_take_over", _nothing)
    with fence.hold(RESOURCE, operation="settle", ttl=6) as newer:
        granted = newer.grant.issued_at
        wait_until(lambda: issued_at(newer) > granted + 3_000_000, "the grant shows it no more")
        assert fence.reconcile(coordinates, grant=newer.token).reason == "GRANT_REFUSED"
        itself: Any = vars(newer)["_lease"]  # not the suite's wrapper
        assert fence.reconcile(coordinates, grant=itself).outcome == "PROVEN_NOT_APPLIED"


def test_r33_a_lease_goes_on_when_its_proofs_are_signed_with_a_new_key(
    connect_unserved: Connect, database: Database, registered: Database, keys: Keys
) -> None:
    later = replace(keys, status=rotation.NEXT_STATUS_KEY)
    with ExitStack() as held:
        with registry(registered, keys):
            hold = connect_unserved().hold(RESOURCE, operation="settle", ttl=60)
            lease = held.enter_context(hold)
        for name, guarded in (("billing", database), ("registry", registered)):
            rotate(guarded, rotation.with_next_status_key(make_bundle(keys, name)), keys.root)
        with registry(registered, later):
            # Refused for the proof that it has, unless it has just been renewed.
            with suppress(errors.UnknownKeyError, errors.OwnershipUnknownError):
                lease.apply({"page": 1}, lambda _: None)
            lease.wait_held(PATIENCE)
            assert lease.apply({"page": 1}, lambda _: None, segment=1).segment_seq == 1


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
        pytest.raises(errors.WrongAudienceError, match="in database archive, and this one is"),
        connect().hold(RESOURCE, operation="settle"),
    ):
        pytest.fail("held")


def test_r13_a_lease_that_no_proof_could_show_is_not_asked_for(connect: Connect) -> None:
    with (
        pytest.raises(errors.InvalidArgumentError, match="more than 0.3 seconds"),
        connect().hold(RESOURCE, operation="settle", ttl=0.3),
    ):
        pytest.fail("held")
