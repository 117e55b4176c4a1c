"""fence.hold: acquire, renew in the background, lose, take over, release."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pgfence import State, errors
from pgfence.client import protocol
from tests.conformance.conftest import RESOURCE, SETTLE, Connect, count, states
from tests.conformance.drivers import Driver, Execute, Lease
from tests.proxy import proxy_to
from tests.support import PATIENCE, Database, wait_until
from tests.workers import end_lease

WAITING = "select count(*) from pgfence_registry.requests where state = 'WAITING'"


def settle(invoice: int, state: str = "settled") -> Any:
    return lambda execute: execute(SETTLE, invoice, state)


def wait_for_state(lease: Lease, state: State) -> None:
    wait_until(lambda: lease.state is state, f"the lease becomes {state}")


def wait_for_move(caplog: pytest.LogCaptureFixture, move: str) -> None:
    """Return when a lease has made a move; a state may be gone before it can be seen."""
    wait_until(lambda: move in caplog.text, f"a lease moves {move}")


def test_r34_the_same_request_id_gives_the_same_grant(connect: Connect) -> None:
    with connect().hold(RESOURCE, operation="settle", request_id="batch-7") as first:
        first.apply({"page": 1}, settle(1))
        with connect().hold(RESOURCE, operation="settle", request_id="batch-7") as second:
            assert second.token == first.token
            # A process that was started again begins at the beginning: what stands is replayed.
            assert second.apply({"page": 1}, settle(1)).replayed
            assert not second.apply({"page": 2}, settle(2)).replayed


def test_r34_the_same_request_id_for_something_else_is_an_error(connect: Connect) -> None:
    with (
        connect().hold(RESOURCE, operation="settle", request_id="batch-7"),
        pytest.raises(errors.RequestConflictError),
        connect().hold(RESOURCE, operation="settle", request_id="batch-7", ttl=5),
    ):
        pytest.fail("held")


def test_r35_a_second_request_of_the_same_owner_waits_and_gets_a_higher_fence(
    connect: Connect, registered: Database
) -> None:
    fence, fences = connect(), []

    def second() -> None:
        with connect().hold(RESOURCE, operation="settle") as lease:
            fences.append(lease.fence_token)

    with fence.hold(RESOURCE, operation="settle") as lease:
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: count(registered, WAITING) == 1, "the second request waits")
        assert not fences
        first = lease.fence_token
    thread.join(PATIENCE)
    assert fences == [first + 1]


@pytest.mark.usefixtures("enough_time")
def test_r36_a_resource_that_is_held_can_be_refused_at_once(
    connect: Connect, registered: Database
) -> None:
    with (
        connect("worker_a").hold(RESOURCE, operation="settle"),
        pytest.raises(errors.AcquireTimeoutError),
        connect("worker_b").hold(RESOURCE, operation="settle", timeout=0),
    ):
        pytest.fail("held twice")
    assert count(registered, WAITING) == 0


def test_a_free_resource_is_had_with_a_timeout_of_zero(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The signature of a grant has three seconds, whatever the timeout.
    monkeypatch.setattr(protocol.leases, "_SIGNING", PATIENCE)
    with connect().hold(RESOURCE, operation="settle", timeout=0) as lease:
        assert lease.state is State.HELD


def test_r35_a_lease_is_renewed_as_long_as_the_block_runs(
    connect: Connect, registered: Database
) -> None:
    ends = "select extract(epoch from lease_ends_at) * 1000 from pgfence_registry.grants"
    with connect().hold(RESOURCE, operation="settle", ttl=6) as lease:
        first, fence_token = count(registered, ends), lease.fence_token
        wait_until(lambda: count(registered, ends) > first + 3000, "renewed more than once")
        assert lease.apply({"page": 1}, settle(1)).fence_token == fence_token


def test_r42_a_lost_renewal_is_asked_again_and_work_goes_on_with_the_same_fence(
    connect: Connect, registered: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "pgfence.client")
    with proxy_to(registered.dsn("worker_a")) as proxy:
        fence = connect(registry_dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=15) as lease:
            lease.apply({"page": 1}, settle(1))
            proxy.cut_when_used()
            lease.renew_now()
            wait_for_move(caplog, "RENEWING -> OWNERSHIP_UNKNOWN")
            wait_for_move(caplog, "OWNERSHIP_UNKNOWN -> HELD")
            again = lease.apply({"page": 2}, settle(2))
            assert (again.fence_token, again.segment_seq) == (lease.fence_token, 2)


def test_r42_r43_without_the_registry_nothing_new_starts_and_the_lease_ends_by_the_own_clock(
    connect: Connect, served: Database, registered: Database
) -> None:
    with proxy_to(registered.dsn("worker_a")) as proxy:
        fence = connect(registry_dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=4) as lease:
            proxy.close()
            lease.renew_now()
            wait_for_state(lease, State.OWNERSHIP_UNKNOWN)
            with pytest.raises(errors.OwnershipUnknownError):
                lease.apply({"page": 1}, settle(1))
            wait_for_state(lease, State.EXPIRED)
            with pytest.raises(errors.NotHeldError) as caught:
                lease.apply({"page": 1}, settle(1))
            assert caught.value.verdict.reason == "EXPIRED"
            with pytest.raises(errors.NotHeldError):
                lease.wait_held()
    assert states(served)[1] == "open"


def test_r10_a_partitioned_owner_is_refused_when_another_one_has_written(
    connect: Connect, driver: Driver, served: Database, registered: Database, route: str
) -> None:
    """etcd#10811: cut off from the registry, it still reaches the database."""
    with proxy_to(registered.dsn("worker_a")) as proxy:
        cut_off = connect(registry_dsn=proxy.dsn)
        with cut_off.hold(RESOURCE, operation="settle", ttl=30) as old:
            old.apply({"page": 1}, settle(1, "by A"))
            proxy.close()
            end_lease(registered, old.grant.lease)
            with connect("worker_b").hold(
                RESOURCE, operation="settle", continues_root=old.operation_root
            ) as new:
                position = new.position()
                assert position.total_segments == 1
                if route != "elsewhere":  # there the new owner has raised the fence already
                    assert position.operation_root == old.operation_root
                new.apply({"page": 2}, settle(1, "by B"))
                with driver.transaction(served.dsn("worker_a")) as (conn, execute):
                    verdict = cut_off.apply(conn, old.token, 2, {"page": 2})
                    with pytest.raises(Exception, match="admitted"):
                        settle(1, "by A")(execute)
                assert verdict.verdict == "STALE_OWNER"
                assert new.position().continues_root == old.operation_root
    assert states(served)[1] == "by B"
    assert count(served, "select count(*) from pgfence.receipts") == 2


def test_r10_an_owner_that_is_told_so_does_not_go_on(
    connect: Connect, served: Database, registered: Database
) -> None:
    with connect("worker_a").hold(RESOURCE, operation="settle", ttl=30) as old:
        registered.connect("dba").execute(
            "set role pgfence_owner; update pgfence_registry.grants"
            " set lease_ends_at = clock_timestamp()"
        )
        with connect("worker_b").hold(RESOURCE, operation="settle") as new:
            new.apply({"page": 1}, settle(1, "by B"))
            with pytest.raises(errors.StaleOwnerError):
                old.apply({"page": 1}, settle(1, "by A"))
            assert old.state is State.EXPIRED
            with pytest.raises(errors.NotHeldError) as caught:
                old.apply({"page": 1}, settle(1, "by A"))
            assert caught.value.verdict.reason == "SUPERSEDED"
    assert states(served)[1] == "by B"


def test_r36_the_release_of_an_owner_whose_lease_ended_leaves_the_next_one_alone(
    connect: Connect, registered: Database
) -> None:
    """redis-py#1031"""
    with connect("worker_b").hold(RESOURCE, operation="settle", ttl=30) as old:
        registered.connect("dba").execute(
            "set role pgfence_owner; update pgfence_registry.grants"
            " set lease_ends_at = clock_timestamp()"
        )
        with connect("worker_a").hold(RESOURCE, operation="settle") as new:
            old.release()
            assert new.apply({"page": 1}, settle(1)).segment_seq == 1


def test_r36_release_frees_the_resource_at_once(connect: Connect, registered: Database) -> None:
    got = threading.Event()

    def waiter() -> None:
        with connect("worker_b").hold(RESOURCE, operation="settle"):
            got.set()

    with connect("worker_a").hold(RESOURCE, operation="settle", ttl=60):
        thread = threading.Thread(target=waiter)
        thread.start()
        wait_until(lambda: count(registered, WAITING) == 1, "the next one waits")
    assert got.wait(PATIENCE)
    thread.join(PATIENCE)


def test_a_handle_used_after_release_is_an_error_here_and_not_held_there(
    connect: Connect, driver: Driver, served: Database, route: str
) -> None:
    """spring-integration#11170"""
    fence = connect()
    with fence.hold(RESOURCE, operation="settle") as lease:
        lease.release()
        lease.release()
        assert lease.state is State.RELEASED
        for use in (lease.advance, lease.position, lambda: lease.apply({}, settle(1))):
            with pytest.raises(errors.HandleClosedError):
                use()
    if route == "elsewhere":  # where nobody knows of the release until the grant's proofs end
        return
    with driver.transaction(served.dsn("worker_a")) as (conn, _):
        verdict = fence.apply(conn, lease.token, 1, {})
    assert (verdict.verdict, verdict.reason) == ("NOT_HELD", "RELEASED")


def test_a_release_that_fails_does_not_hide_what_the_block_raised(
    connect: Connect, registered: Database
) -> None:
    with proxy_to(registered.dsn("worker_a")) as proxy:
        fence = connect(registry_dsn=proxy.dsn)
        with (
            pytest.raises(ValueError, match="the real reason"),
            fence.hold(RESOURCE, operation="settle", ttl=1),
        ):
            proxy.close()
            raise ValueError("the real reason")


def test_r46_segments_of_several_threads_are_applied_one_after_the_other(
    connect: Connect, served: Database
) -> None:
    numbers: list[int] = []
    with connect().hold(RESOURCE, operation="settle") as lease:

        def worker(invoice: int) -> None:
            numbers.append(lease.apply({"invoice": invoice}, settle(invoice)).segment_seq)

        threads = [threading.Thread(target=worker, args=(i,)) for i in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers) == list(range(1, 9))
    assert list(states(served).values()).count("settled") == 8


def test_work_cannot_use_its_own_lease(connect: Connect) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:

        def nested(execute: Execute) -> None:
            lease.apply({"page": 2}, settle(2))

        with pytest.raises(errors.InvalidArgumentError, match="its own lease"):
            lease.apply({"page": 1}, nested)


def test_r36_a_role_with_another_default_isolation_acquires_all_the_same(
    connect: Connect, served: Database
) -> None:
    served.connect().execute(
        f"alter database {served.name} set default_transaction_isolation = 'serializable'"
    )
    with connect().hold(RESOURCE, operation="settle", ttl=5) as lease:
        lease.apply({"page": 1}, settle(1))
    assert states(served)[1] == "settled"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": -1}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
        ({"ttl": float("inf")}, "ttl"),
        ({"ttl": "10"}, "ttl"),
        ({"ttl": True}, "ttl"),
        ({"ttl": 10**9}, "out of range"),
        ({"timeout": -1}, "timeout"),
        ({"operation": "two words"}, "operation .* canonical ID"),
        ({"operation": ""}, "operation .* canonical ID"),
        ({"request_id": 'a"b'}, "request_id .* canonical ID"),
        ({"continues_root": "sha256:0"}, "operation root"),
    ],
    ids=repr,
)
def test_arguments_that_make_no_sense_are_refused(
    connect: Connect, registered: Database, options: dict[str, Any], named: str
) -> None:
    with (
        pytest.raises(errors.InvalidArgumentError, match=named),
        connect().hold(RESOURCE, **({"operation": "settle"} | options)),
    ):
        pytest.fail("held")
    assert count(registered, "select count(*) from pgfence_registry.requests") == 0


@pytest.mark.parametrize("resource", ["", "a b", "é", "x" * 256, 'a"', "a\\"])
def test_r1_a_resource_that_is_no_canonical_id_is_refused(connect: Connect, resource: str) -> None:
    with (
        pytest.raises(errors.InvalidArgumentError, match=r"resource .* canonical ID") as caught,
        connect().hold(resource, operation="settle"),
    ):
        pytest.fail("held")
    assert "printable ASCII" in (caught.value.next_step or "")


@pytest.mark.parametrize(("ttl", "timeout"), [(10, 0), (10, 0.5), (0.5, 1.5)])
@pytest.mark.usefixtures("enough_time")
def test_r53_a_hold_times_out_also_while_no_registry_process_signs(
    connect_unserved: Connect, ttl: float, timeout: float
) -> None:
    with (
        pytest.raises(errors.AcquireTimeoutError, match="registry process"),
        connect_unserved().hold(RESOURCE, operation="settle", ttl=ttl, timeout=timeout),
    ):
        pytest.fail("held")
