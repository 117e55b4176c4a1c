"""What a worker does about a COMMIT that was not answered (R44, R45)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from pgfence import Coordinates, errors
from pgfence.client.protocol import Failed
from tests.conformance.conftest import NOT_POOLED, RESOURCE, Connect, count, states
from tests.conformance.drivers import Fence, Lease
from tests.conformance.test_apply import never, settle
from tests.proxy import Proxy, proxy_to
from tests.support import Database, wait_until
from tests.workers import end_lease, in_background

#: Through a pooler: test_lost_acknowledgements.py.
pytestmark = NOT_POOLED
UNKNOWN = "select count(*) from pgfence.unknown_mutations"
Lose = Callable[[Proxy], None]


def lose(
    connect: Connect, served: Database, how: Lose, then: Callable[[Fence, Lease, Any], None]
) -> Any:
    """Settle invoice 1, lose COMMIT or the answer to it, and go on with the lease held."""
    with proxy_to(served.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=60) as lease:
            lease.advance()  # its connection is there before anything is lost
            how(proxy)
            with pytest.raises(errors.MutationUnknownError) as caught:
                lease.apply({"page": 1}, settle(1))
            then(fence, lease, caught.value)
    return caught.value


def test_r45_a_lost_answer_is_reconciled_to_the_receipt(connect: Connect, served: Database) -> None:
    def then(fence: Fence, lease: Lease, unknown: Any) -> None:
        outcome = fence.reconcile(unknown)
        assert (outcome.outcome, outcome.accepted, outcome.settled) == ("ACCEPTED", True, True)
        assert outcome.receipt == lease.apply({"page": 1}, never)

    lose(connect, served, Proxy.lose_reply_to_commit, then)
    assert states(served)[1] == "settled"


def test_r45_a_commit_that_never_came_is_unresolved_while_the_lease_is_held(
    connect: Connect, served: Database
) -> None:
    def then(fence: Fence, lease: Lease, unknown: Any) -> None:
        outcome = fence.reconcile(unknown)
        assert (outcome.outcome, outcome.reason) == ("UNRESOLVED", "LEASE_HELD")
        assert (outcome.settled, outcome.receipt) == (False, None)
        assert not lease.apply({"page": 1}, settle(1)).replayed
        assert fence.reconcile(unknown).accepted

    lose(connect, served, Proxy.lose_commit, then)


def test_r45_the_next_owner_proves_with_its_grant_that_nothing_can_come(
    connect: Connect, served: Database, registered: Database, route: str
) -> None:
    def then(fence: Fence, lease: Lease, unknown: Any) -> None:
        end_lease(registered, lease.grant.lease)
        successor = connect("worker_b")
        kept = json.dumps(asdict(unknown.coordinates))
        with successor.hold(RESOURCE, operation="settle", ttl=60) as newer:
            coordinates = Coordinates(**json.loads(kept))  # in another process, say
            if route != "elsewhere":  # there the new owner has raised the fence already
                assert fence.reconcile(coordinates).reason == "LEASE_OVER"
            assert successor.reconcile(coordinates).reason == "NOT_YOURS"
            outcome = successor.reconcile(coordinates, grant=newer.token)
            assert (outcome.outcome, outcome.settled) == ("PROVEN_NOT_APPLIED", True)
            assert fence.reconcile(unknown) == outcome

    lose(connect, served, Proxy.lose_commit, then)
    assert states(served)[1] == "open"


def test_r44_what_is_unknown_is_noted_where_others_see_it(
    connect: Connect, served: Database
) -> None:
    def then(fence: Fence, lease: Lease, unknown: Any) -> None:
        assert count(served, UNKNOWN) == 1
        auditor = served.connect("auditor")
        row = auditor.execute(
            "select kind, resource, operation_root, segment_seq, payload_digest"
            " from pgfence.unknown_outcomes()"
        ).fetchone()
        assert row == ("UNANSWERED_COMMIT", *asdict(unknown.coordinates).values())
        fence.reconcile(unknown)
        assert count(served, UNKNOWN) == 0

    lose(connect, served, Proxy.lose_reply_to_commit, then)


def test_r44_an_outcome_that_cannot_be_noted_is_raised_and_logged_all_the_same(
    connect: Connect, served: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def how(proxy: Proxy) -> None:
        proxy.lose_reply_to_commit()
        proxy.refuse_new()

    lose(connect, served, how, lambda fence, lease, unknown: None)
    assert "and that could not be noted" in caplog.text
    assert count(served, UNKNOWN) == 0


def test_r45_reconciling_waits_for_the_commit_that_is_on_its_way(
    connect: Connect, served: Database
) -> None:
    """The worker is cut off, and its transaction still runs in the server."""
    fence = connect()
    with fence.hold(RESOURCE, operation="settle", ttl=60) as lease:
        receipt = lease.apply({"page": 1}, settle(1))
        blocker = served.connect("worker_a", autocommit=False)
        blocker.execute("select * from pgfence.fenced_apply(%s, 2, 'two')", [lease.token])
        coordinates = Coordinates(RESOURCE, lease.operation_root, 2)
        asked = in_background(lambda: fence.reconcile(coordinates))
        watch = served.connect()
        blocked = (
            "select count(*) from pg_stat_activity where query like '%pgfence.reconcile(%'"
            " and wait_event_type = 'Lock'"
        )
        wait_until(lambda: watch.execute(blocked).fetchone() == (1,), "it waits for the row")
        blocker.commit()
        assert asked.result().accepted
        assert fence.reconcile(Coordinates(RESOURCE, lease.operation_root, 1)).receipt == receipt


def test_r45_another_payload_than_the_one_that_stands_is_a_conflict(
    connect: Connect, served: Database
) -> None:
    fence = connect()
    with fence.hold(RESOURCE, operation="settle", ttl=60) as lease:
        receipt = lease.apply({"page": 1}, settle(1))
        outcome = fence.reconcile(Coordinates(RESOURCE, lease.operation_root, 1, "0" * 64))
        assert (outcome.outcome, outcome.receipt) == ("PAYLOAD_CONFLICT", receipt)
        with pytest.raises(errors.InvalidArgumentError):
            fence.reconcile(Coordinates(RESOURCE, "not a root", 1))


def test_r44_an_error_that_commit_itself_reports_is_known_not_to_stand(
    connect: Connect, served: Database
) -> None:
    """The connection is alive and the server says no: nothing is unknown."""
    owner = served.connect("billing_owner")
    owner.execute("create table settled (id int references invoices deferrable initially deferred)")
    owner.execute("grant insert on settled to worker_a")

    def work(execute: Any) -> None:
        settle(1)(execute)
        execute("insert into settled values (4711)")  # there is no such invoice

    fence = connect()
    with fence.hold(RESOURCE, operation="settle", ttl=60) as lease:
        with pytest.raises(Exception, match="settled_id_fkey") as caught:
            lease.apply({"page": 1}, work)
        assert not isinstance(caught.value, errors.MutationUnknownError)
        assert states(served)[1] == "open"
        assert lease.apply({"page": "another"}, settle(1)).segment_seq == 1
    assert count(served, UNKNOWN) == 0


def test_r44_a_session_that_is_ended_before_commit_is_sent_leaves_nothing_unknown(
    connect: Connect, served: Database
) -> None:
    def work(execute: Any) -> None:
        settle(1)(execute)
        execute("select pg_terminate_backend(pg_backend_pid())")

    fence = connect()
    with fence.hold(RESOURCE, operation="settle", ttl=60) as lease:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - each driver has its own
            lease.apply({"page": 1}, work)
        assert not isinstance(caught.value, errors.MutationUnknownError)
        assert states(served)[1] == "open"
        assert lease.apply({"page": "another"}, settle(1)).segment_seq == 1
    assert count(served, UNKNOWN) == 0


def test_where_the_database_cannot_be_reached_again_the_driver_s_own_error_comes_out(
    connect: Connect, served: Database
) -> None:
    with proxy_to(served.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=60) as lease:
            lease.advance()
            coordinates = Coordinates(RESOURCE, lease.operation_root, 1)
            proxy.close()
            for ask in (lease.advance, lambda: fence.reconcile(coordinates)):
                with pytest.raises(Exception) as caught:  # noqa: PT011 - each driver has its own
                    ask()
                assert not isinstance(caught.value, Failed), "it is the protocol's own"
