"""Leases that were lost, doubted or taken for something else, as others have met them.

docs/scenarios.md has the reports.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import pgfence
from pgfence import State, errors
from tests.proxy import proxy_to
from tests.registry import registry
from tests.scenarios.conftest import RESOURCE, Results
from tests.support import PATIENCE, wait_until, wait_until_blocked
from tests.workers import end_lease, in_background

PAGES = list(range(1, 11))


@pytest.fixture(autouse=True)
def signing(results: Results) -> Iterator[None]:
    with registry(results.database, results.keys):
        yield


def connect(results: Results, role: str) -> pgfence.Fence:
    return pgfence.connect(results.database.dsn(role))


def say(value: object) -> Any:
    """Work that writes the one row."""

    def work(tx: Any, *_: Any) -> None:
        tx.execute(
            "insert into results values (%s, %s) on conflict (resource)"
            " do update set value = excluded.value, written_by = default",
            [RESOURCE, str(value)],
        )

    return work


@pytest.mark.rule("R10", "R46")
def test_shedlock_1596_a_job_that_outlives_its_lock_does_not_run_beside_its_successor(
    results: Results,
) -> None:
    """Ten segments; the lease is lost after four, and the successor goes on with the fifth."""
    written: list[tuple[str, int]] = []
    taken_over, done = threading.Event(), threading.Event()

    def work_of(name: str) -> Any:
        def work(tx: Any, page: int) -> None:
            say(f"page {page}")(tx)
            written.append((name, page))

        return work

    def outlive(page: int) -> int:
        if page == 5:
            end_lease(results.database, a.grant.lease)
            taken_over.set()
            assert done.wait(PATIENCE)
        return page

    def take_over() -> None:
        assert taken_over.wait(PATIENCE)
        with (
            connect(results, "worker_b") as fence,
            fence.hold(RESOURCE, operation="settle", continues_root=a.operation_root) as b,
        ):
            assert b.position().total_segments == 4
            b.map(lambda page: page, PAGES, work_of("B"))
        done.set()

    with (
        connect(results, "worker_a") as fence,
        fence.hold(RESOURCE, operation="settle", ttl=600) as a,
    ):
        successor = in_background(take_over)
        with pytest.raises(errors.StaleOwnerError):
            a.map(outlive, PAGES, work_of("A"), workers=1, ahead=1)
        successor.result(PATIENCE)
        with pytest.raises(errors.NotHeldError):
            a.apply(5, say("page 5, once more"))
    assert written == [("A", page) for page in PAGES[:4]] + [("B", page) for page in PAGES[4:]]
    assert results.receipts() == [(1, n) for n in range(1, 5)] + [(2, n) for n in range(1, 7)]
    assert results.refusals() == [("STALE_OWNER", "worker_a")]


@pytest.mark.rule("R35")
def test_spring_integration_3272_one_release_frees_however_often_it_was_asked_for(
    results: Results,
) -> None:
    with connect(results, "worker_a") as fence, connect(results, "worker_b") as other:
        with fence.hold(RESOURCE, operation="settle", ttl=600) as lease:
            for _ in range(3):
                # Asking again is no second lock on top: it waits, or is refused at once.
                with (
                    pytest.raises(errors.AcquireTimeoutError),
                    fence.hold(RESOURCE, operation="settle", ttl=600, timeout=0),
                ):
                    pytest.fail("held twice")
            first = lease.fence_token
        with other.hold(RESOURCE, operation="settle", timeout=PATIENCE) as next_one:
            assert next_one.fence_token == first + 1


@pytest.mark.rule("R41")
def test_spring_integration_11170_a_lock_object_does_not_outlive_its_lock(results: Results) -> None:
    with connect(results, "worker_a") as fence:
        with fence.hold(RESOURCE, operation="settle") as cached:
            cached.apply(1, say("while it was ours"))
        with pytest.raises(errors.HandleClosedError):
            cached.apply(2, say("from a cache"))
        with pytest.raises(errors.HandleClosedError):
            cached.map(lambda page: page, PAGES, say("from a cache"))
    worker = results.worker("worker_a")
    assert results.write(worker, cached.token, 2, "by SQL") == "NOT_HELD"
    assert results.rows() == [("while it was ours", "worker_a")]


@pytest.mark.rule("R12")
def test_celery_5935_a_redelivered_task_does_not_replace_what_stands_by_nothing(
    results: Results,
) -> None:
    """One task, delivered twice at once, and once more with nothing in it."""
    one, other = results.worker("worker_a"), results.worker("worker_a")
    with (
        connect(results, "worker_a") as fence,
        fence.hold(RESOURCE, operation="settle", request_id="task-7") as lease,
    ):
        with one.transaction():
            assert one.apply(lease.token, 1, "the recording").verdict == "ACCEPTED"
            results.write_anyway(one, "the recording")
            redelivered = in_background(lambda: other.apply(lease.token, 1, "the recording"))
            wait_until_blocked(results.database.connect(), other.pid)
        assert redelivered.result(PATIENCE).verdict == "REPLAYED"
        with fence.hold(RESOURCE, operation="settle", request_id="task-7") as again:
            assert again.apply("the recording", say("")).replayed
            with pytest.raises(errors.PayloadConflictError):
                again.apply("", say(""), segment=1)
    assert results.rows() == [("the recording", "worker_a")]
    assert results.receipts() == [(1, 1)]


@pytest.mark.rule("R13", "R36")
def test_dbos_742_who_did_not_get_the_claim_has_nothing_to_run_with(results: Results) -> None:
    ran: list[str] = []
    with (
        connect(results, "worker_b") as holder,
        holder.hold(RESOURCE, operation="settle", ttl=600) as held,
        connect(results, "worker_a") as fence,
    ):
        with (
            pytest.raises(errors.AcquireTimeoutError),
            fence.hold(RESOURCE, operation="settle", timeout=0) as lease,
        ):
            ran.append(lease.token)
        assert ran == []
        with connect(results, "worker_a") as earlier, earlier.hold("job/other", operation="settle"):
            pass
        # Not with somebody else's grant either, nor with one of its own that is over.
        worker = results.worker("worker_a")
        assert results.write(worker, held.token, 1, "by A") == "NOT_OWNER"
        old = worker.acquire("job/old")
        worker.release(old.lease)
        assert worker.apply(old.token, 1).verdict == "NOT_HELD"
    assert results.rows() == []


@pytest.mark.rule("R43")
def test_marm_memory_128_renewals_that_fail_for_longer_than_the_lease_end_it_by_the_own_clock(
    results: Results,
) -> None:
    """Nobody tells the worker anything, least of all that its renewals fail."""
    told = threading.Event()
    with (
        proxy_to(results.database.dsn("worker_a")) as proxy,
        pgfence.connect(proxy.dsn) as fence,
        fence.hold(RESOURCE, operation="settle", ttl=4) as lease,
    ):
        lease.on_lost(told.set)
        lease.apply(1, say("before"))
        proxy.freeze()  # the connections stay, and are silent
        proxy.refuse_new()
        assert lease.lost.wait(PATIENCE)
        assert told.wait(PATIENCE)
        assert lease.state is State.EXPIRED
        with pytest.raises(errors.NotHeldError):
            lease.apply(2, say("after"))
        proxy.close()
    assert results.rows() == [("before", "worker_a")]


@pytest.mark.rule("R42")
def test_agenta_6530_one_lost_reply_to_a_good_renewal_kills_nobody(
    results: Results, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "pgfence.client")
    told = threading.Event()
    with (
        proxy_to(results.database.dsn("worker_a")) as proxy,
        pgfence.connect(proxy.dsn) as fence,
        fence.hold(RESOURCE, operation="settle", ttl=9) as lease,
    ):
        lease.on_lost(told.set)
        first = lease.apply(1, say("before"))
        proxy.cut()
        wait_until(lambda: "RENEWING -> OWNERSHIP_UNKNOWN" in caplog.text, "a renewal is lost")
        wait_until(lambda: "OWNERSHIP_UNKNOWN -> HELD" in caplog.text, "it is asked again")
        second = lease.apply(2, say("after"))
        assert (second.fence_token, second.segment_seq) == (first.fence_token, 2)
        assert not lease.lost.is_set()
        assert not told.is_set()
    assert results.rows() == [("after", "worker_a")]


@pytest.mark.rule("R13")
def test_kafka_12392_kip_588_an_owner_without_rival_is_not_called_superseded(
    results: Results,
) -> None:
    def hold_and_lose(then: Any) -> str | None:
        with (
            connect(results, "worker_a") as fence,
            fence.hold(RESOURCE, operation="settle", ttl=600) as lease,
        ):
            end_lease(results.database, lease.grant.lease)
            then()
            with pytest.raises(errors.NotHeldError) as caught:
                lease.apply(1, say("by A"))
            return caught.value.verdict.reason

    def take_over() -> None:
        with (
            connect(results, "worker_b") as fence,
            fence.hold(RESOURCE, operation="settle"),
        ):
            pass

    assert hold_and_lose(lambda: None) == "EXPIRED"
    assert hold_and_lose(take_over) == "SUPERSEDED"
    assert results.rows() == []
