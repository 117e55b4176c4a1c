"""lease.apply and fence.apply: one segment, one transaction, one receipt."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from pgfence import errors
from pgfence.client.protocol import Failed
from tests.conformance.conftest import RESOURCE, SETTLE, Connect, count, states
from tests.conformance.drivers import Driver, Execute
from tests.proxy import proxy_to
from tests.support import PATIENCE, Database, wait_until

RECEIPTS = "select count(*) from pgfence.receipts"
OPEN = (
    "select count(*) from pg_stat_activity"
    " where usename = 'worker_a' and datname = current_database() and backend_xid is not null"
)


def settle(*ids: int, state: str = "settled") -> Any:
    def work(execute: Execute) -> None:
        for invoice in ids:
            execute(SETTLE, invoice, state)

    return work


def never(execute: Execute) -> None:
    pytest.fail("work ran for a segment that is not new")


def test_r15_work_and_receipt_stand_together(connect: Connect, served: Database) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        receipt = lease.apply({"page": 1}, settle(1, 2))
        row = served.connect().execute(
            "select resource, fence_token, segment_seq, operation_root, accepted_at,"
            " encode(grant_digest, 'hex'), encode(payload_digest, 'hex'), encode(digest, 'hex')"
            " from pgfence.receipts"
        )
        assert row.fetchall() == [
            (
                receipt.resource,
                receipt.fence_token,
                receipt.segment_seq,
                receipt.operation_root,
                receipt.accepted_at,
                receipt.grant_digest,
                receipt.payload_digest,
                receipt.digest,
            )
        ]
        assert (receipt.segment_seq, receipt.replayed) == (1, False)
    assert [states(served)[i] for i in (1, 2, 3)] == ["settled", "settled", "open"]


def test_segments_are_numbered_from_one_on(connect: Connect) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        numbers = [lease.apply(page, settle(page)).segment_seq for page in (1, 2, 3)]
    assert numbers == [1, 2, 3]


@pytest.mark.parametrize("number", [0, -1, 1.0, True, "1", 2**53, 2**63])
def test_a_number_that_is_no_segment_s_is_said_to_be_none(connect: Connect, number: Any) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(errors.InvalidArgumentError, match="segment must be an int from 1 to"):
            lease.apply("page", settle(1), segment=number)
        assert lease.apply("page", settle(1)).segment_seq == 1


def test_r12_a_segment_again_gives_the_original_receipt_and_work_does_not_run(
    connect: Connect,
) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        first = lease.apply({"page": 1}, settle(1))
        lease.apply({"page": 2}, settle(2))
        again = lease.apply({"page": 1}, never, segment=1)
        assert again == first
        assert again.replayed
        assert lease.apply({"page": 3}, settle(3)).segment_seq == 3


def test_r12_another_payload_for_a_segment_is_quarantined_and_the_evidence_stays(
    connect: Connect, served: Database
) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        lease.apply({"page": 1}, settle(1))
        with pytest.raises(errors.PayloadConflictError):
            lease.apply({"page": "another"}, never, segment=1)
    assert count(served, "select count(*) from pgfence.quarantined_segments") == 1
    assert count(served, RECEIPTS) == 1


def test_r14_a_gap_is_refused_and_the_evidence_stays(connect: Connect, served: Database) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(errors.SegmentGapError):
            lease.apply({"page": 5}, never, segment=5)
        lease.apply({"page": 1}, settle(1))
    assert count(served, "select count(*) from pgfence.refusals where verdict = 'SEGMENT_GAP'") == 1


def test_what_work_raises_undoes_the_segment_and_its_number_is_free(
    connect: Connect, served: Database
) -> None:
    def breaks(execute: Execute) -> None:
        settle(1)(execute)
        raise ValueError("the page is damaged")

    with connect().hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(ValueError, match="damaged"):
            lease.apply({"page": 1}, breaks)
        assert states(served)[1] == "open"
        assert count(served, RECEIPTS) == 0
        assert lease.apply({"page": 1}, settle(1)).segment_seq == 1
    assert states(served)[1] == "settled"


def test_r23_a_row_of_another_resource_in_work_is_not_admitted(
    connect: Connect, served: Database
) -> None:
    with (
        connect().hold("invoice-batch/2026-07-20", operation="settle") as lease,
        pytest.raises(errors.NotAdmittedError) as caught,
    ):
        lease.apply({"page": 1}, settle(1))
    assert caught.value.rule in ("R23", "R24")
    assert states(served)[1] == "open"
    assert count(served, RECEIPTS) == 0


def test_work_that_swallows_a_database_error_does_not_commit(
    connect: Connect, served: Database
) -> None:
    def swallows(execute: Execute) -> None:
        settle(1)(execute)
        with pytest.raises(Exception, match="division by zero"):
            execute("select 1 / 0")

    with connect().hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(errors.PgfenceError, match="undone"):
            lease.apply({"page": 1}, swallows)
        assert count(served, RECEIPTS) == 0
        lease.apply({"page": 1}, settle(1))


def test_work_that_swallows_the_loss_of_its_connection_is_told_in_the_drivers_words(
    connect: Connect, served: Database
) -> None:
    def swallows(execute: Execute) -> None:
        settle(1)(execute)
        with suppress(Exception):
            execute("select pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())")

    with connect().hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(Exception, match="lost|closed|terminat") as caught:
            lease.apply({"page": 1}, swallows)
        assert not isinstance(caught.value, Failed | errors.MutationUnknownError)
        assert count(served, RECEIPTS) == 0
        lease.apply({"page": 1}, settle(1))


def test_work_that_ends_the_transaction_is_not_taken_for_a_segment(
    connect: Connect, served: Database
) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(errors.MutationUnknownError):
            lease.apply({"page": 1}, lambda execute: execute("rollback"))
        assert count(served, RECEIPTS) == 0
        assert not lease.apply({"page": 1}, settle(1)).replayed


def test_r19_a_lease_that_ends_while_work_runs_is_not_committed(
    connect: Connect, served: Database
) -> None:
    """Renewal goes on meanwhile: what ends is what the transaction was admitted for (R20)."""

    def dawdles(execute: Execute) -> None:
        settle(1)(execute)
        execute("select pg_sleep(4.2)")

    with connect().hold(RESOURCE, operation="settle", ttl=4.0) as lease:
        with pytest.raises(errors.LeaseEndedError):
            lease.apply({"page": 1}, dawdles)
        assert states(served)[1] == "open"
        lease.wait_held(PATIENCE)
        assert lease.apply({"page": 1}, settle(1)).segment_seq == 1


def test_r20_the_server_ends_an_owner_that_stops_before_its_first_statement(
    connect: Connect, served: Database
) -> None:
    """Before PostgreSQL 17 its timer for idling is all there is: no driver may have stopped it."""

    def stops(_: Execute) -> None:
        wait_until(lambda: count(served, OPEN) == 1, "the segment is open")
        wait_until(lambda: count(served, OPEN) == 0, "the server has ended the session")

    with connect().hold(RESOURCE, operation="settle", ttl=3.0) as lease:
        # Through a pooler it hears of a lost connection, and no more.
        with pytest.raises((errors.LeaseEndedError, errors.MutationUnknownError)):
            lease.apply({"page": 1}, stops)
        assert count(served, RECEIPTS) == 0


def test_r44_the_acknowledgement_lost_five_times_gives_one_row_and_the_same_receipt(
    connect: Connect, served: Database
) -> None:
    with proxy_to(served.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=30) as lease:
            proxy.lose_reply_to_commit()
            with pytest.raises(errors.MutationUnknownError) as caught:
                lease.apply({"page": 1}, settle(1))
            unknown = caught.value
            assert (unknown.resource, unknown.operation_root, unknown.segment_seq) == (
                RESOURCE,
                lease.operation_root,
                1,
            )
            # Losing the answer to a replay loses nothing: the receipt was known before COMMIT.
            receipts = []
            for _ in range(4):
                proxy.lose_reply_to_commit()
                receipts.append(lease.apply({"page": 1}, never, segment=1))
            assert lease.apply({"page": 2}, settle(2)).segment_seq == 2
    assert len({receipt.digest for receipt in receipts}) == 1
    assert receipts[0].payload_digest == unknown.payload_digest
    assert all(receipt.replayed for receipt in receipts)
    assert count(served, RECEIPTS) == 2


def test_r44_a_commit_that_never_arrived_is_unknown_too_and_is_applied_when_asked_again(
    connect: Connect, served: Database
) -> None:
    with proxy_to(served.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=30) as lease:
            proxy.lose_commit()
            with pytest.raises(errors.MutationUnknownError):
                lease.apply({"page": 1}, settle(1))
            assert states(served)[1] == "open"
            assert not lease.apply({"page": 1}, settle(1)).replayed
    assert states(served)[1] == "settled"
    assert count(served, RECEIPTS) == 1


def test_r44_no_other_segment_starts_until_the_unknown_one_is_settled(
    connect: Connect, served: Database
) -> None:
    with proxy_to(served.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=30) as lease:
            proxy.lose_reply_to_commit()
            with pytest.raises(errors.MutationUnknownError):
                lease.apply({"page": 1}, settle(1))
            for segment in (None, 1, 2):
                with pytest.raises(errors.MutationUnknownError) as caught:
                    lease.apply({"page": 2}, never, segment=segment)
                assert caught.value.segment_seq == 1
            assert lease.apply({"page": 1}, never).replayed
            assert lease.apply({"page": 2}, settle(2)).segment_seq == 2
    assert count(served, RECEIPTS) == 2


def test_r24_the_caller_s_transaction_is_admitted_and_never_committed_for_them(
    connect: Connect, driver: Driver, served: Database
) -> None:
    fence = connect()
    with fence.hold(RESOURCE, operation="settle") as lease:
        with (
            pytest.raises(RuntimeError, match="changed my mind"),
            driver.transaction(served.dsn("worker_a")) as (conn, execute),
        ):
            assert fence.apply(conn, lease.token, 1, {"page": 1}).verdict == "ACCEPTED"
            settle(1)(execute)
            raise RuntimeError("changed my mind")
        assert states(served)[1] == "open"
        assert count(served, RECEIPTS) == 0
        with driver.transaction(served.dsn("worker_a")) as (conn, execute):
            verdict = fence.apply(conn, lease.token, 1, {"page": 1})
            assert (verdict.verdict, verdict.fence_token) == ("ACCEPTED", lease.fence_token)
            settle(1)(execute)
    assert states(served)[1] == "settled"
    assert count(served, RECEIPTS) == 1


@pytest.mark.parametrize("grant", [None, 5, b"v4.public."])
def test_what_is_no_grant_is_said_to_be_none(
    connect: Connect, driver: Driver, served: Database, grant: Any
) -> None:
    """As of a variable that is not set."""
    with (
        driver.transaction(served.dsn("worker_a")) as (conn, _),
        pytest.raises(errors.InvalidArgumentError, match="grant must be a Lease or a token"),
    ):
        connect().apply(conn, grant, 1, "page")


def test_r18_on_the_caller_s_connection_a_refusal_is_returned_so_that_evidence_can_be_committed(
    connect: Connect, driver: Driver, served: Database
) -> None:
    fence = connect()
    with fence.hold(RESOURCE, operation="settle") as lease:
        with driver.transaction(served.dsn("worker_a")) as (conn, _):
            verdict = fence.apply(conn, lease.token, 3, {"page": 3})
        assert verdict.verdict == "SEGMENT_GAP"
    with pytest.raises(errors.SegmentGapError):
        verdict.require()
    assert count(served, "select count(*) from pgfence.refusals where verdict = 'SEGMENT_GAP'") == 1


def test_r6_another_workload_s_grant_is_refused_on_its_own_connection(
    connect: Connect, driver: Driver, served: Database
) -> None:
    with connect("worker_a").hold(RESOURCE, operation="settle") as lease:
        other = connect("worker_b")
        with driver.transaction(served.dsn("worker_b")) as (conn, execute):
            assert other.apply(conn, lease.token, 1, {}).verdict == "NOT_OWNER"
            with pytest.raises(Exception, match="admitted"):
                settle(1)(execute)
    assert states(served)[1] == "open"


def test_r54_a_token_that_fails_the_client_s_own_check_does_not_reach_the_database(
    connect: Connect, driver: Driver, served: Database
) -> None:
    fence = connect()
    with fence.hold(RESOURCE, operation="settle") as lease:
        head, body, foot = lease.token.rpartition(".")[0], "", lease.token.rpartition(".")[2]
        changed = head[:-1] + ("A" if head[-1] != "A" else "B") + body + "." + foot
        with driver.transaction(served.dsn("worker_a")) as (conn, _):
            verdict = fence.apply(conn, changed, 1, {})
    assert verdict.verdict in ("BAD_SIGNATURE", "MALFORMED")
    assert count(served, "select count(*) from pgfence.refusals where verdict is not null") == 0


@pytest.mark.parametrize("segment", [0, -1, True, "1", 1.0, None])
def test_a_segment_that_is_no_number_from_one_on_is_refused(
    connect: Connect, driver: Driver, served: Database, segment: Any
) -> None:
    fence = connect()
    with (
        driver.transaction(served.dsn("worker_a")) as (conn, _),
        pytest.raises(errors.InvalidArgumentError, match="segment"),
    ):
        fence.apply(conn, "v4.public.x", segment, {})


def test_r21_advance_raises_the_fence_without_a_row_and_again_changes_nothing(
    connect: Connect, served: Database
) -> None:
    fence = connect()
    with fence.hold(RESOURCE, operation="settle") as lease:
        for _ in range(2):
            assert lease.advance().verdict == "ADVANCED"
        position = lease.position()
        assert (position.highest_fence, position.last_segment) == (lease.fence_token, 0)
        assert lease.apply({"page": 1}, settle(1)).segment_seq == 1
        assert fence.position(RESOURCE).last_segment == 1
    assert count(served, RECEIPTS) == 1
