"""lease.map: computed at once, applied in order, gone on with where the receipts end (R46)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from pgfence import errors
from pgfence.model.receipt import Receipt
from tests.conformance.conftest import NOT_POOLED, RESOURCE, SETTLE, Connect, count, states
from tests.conformance.drivers import DRIVERS, Asyncpg, Driver, Execute, Lease, Psycopg
from tests.conformance.test_hold import WAITING, wait_for_move
from tests.conformance.test_shadow import in_shadow  # noqa: F401 - a fixture
from tests.proxy import proxy_to
from tests.support import PATIENCE, Database, wait_until
from tests.workers import end_lease, in_background

RECEIPTS = "select count(*) from pgfence.receipts"
PAGES = list(range(1, 11))


@pytest.fixture(params=[Psycopg(), Asyncpg()], ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Driver:
    """With threads and with tasks; what a driver changes is tried with single segments."""
    chosen: Driver = request.param
    return chosen


#: What a pooler changes is tried with single segments.
pytestmark = NOT_POOLED


class Settling:
    """The two functions that `map` takes, and what they were called with."""

    def __init__(self) -> None:
        self.computed: list[int] = []
        self.written: list[int] = []

    def compute(self, page: int) -> int:
        self.computed.append(page)
        return -page

    def write(self, execute: Execute, computed: int) -> None:
        execute(SETTLE, -computed, "settled")
        self.written.append(-computed)


def settled(database: Database) -> list[int]:
    return [page for page, state in states(database).items() if state == "settled"]


def numbers(receipts: list[Receipt]) -> list[int]:
    return [receipt.segment_seq for receipt in receipts]


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_r46_items_are_computed_at_once_and_applied_in_order(
    connect: Connect, served: Database
) -> None:
    settling = Settling()
    all_at_once = threading.Barrier(4)
    fourth = threading.Event()

    def compute(page: int) -> int:
        if page <= 4:
            all_at_once.wait(PATIENCE)
        if page == 4:
            fourth.set()
        elif page < 4:
            assert fourth.wait(PATIENCE)  # the first one ends last
        return settling.compute(page)

    with connect().hold(RESOURCE, operation="settle") as lease:
        receipts = lease.map(compute, PAGES, settling.write, workers=4)
        assert numbers(receipts) == PAGES
        assert lease.apply("the end", lambda execute: None).segment_seq == 11
    assert settling.written == PAGES
    assert settled(served) == PAGES


def test_r46_no_more_items_are_taken_than_can_wait_to_be_applied(connect: Connect) -> None:
    settling, taken = Settling(), []

    def items() -> Iterator[int]:
        for page in PAGES:
            taken.append(page)
            yield page

    def write(execute: Execute, computed: int) -> None:
        assert len(taken) <= len(settling.written) + 3
        settling.write(execute, computed)

    with connect().hold(RESOURCE, operation="settle") as lease:
        lease.map(settling.compute, items(), write, workers=2, ahead=3)
    assert settling.written == PAGES


@pytest.mark.parametrize("by", ["the same grant", "a successor"])
def test_r46_it_goes_on_where_the_receipts_end(connect: Connect, served: Database, by: str) -> None:
    first, second, later = Settling(), Settling(), Settling()
    same = by == "the same grant"
    request: dict[str, Any] = {"request_id": "batch-7"} if same else {}
    with connect().hold(RESOURCE, operation="settle", **request) as lease:
        first_receipts = lease.map(first.compute, PAGES[:4], first.write)
        if same:
            with connect().hold(RESOURCE, operation="settle", **request) as again:
                receipts = again.map(second.compute, PAGES[:7], second.write)
                assert numbers(receipts) == [5, 6, 7]
    if not same:
        with connect("worker_b").hold(
            RESOURCE, operation="settle", continues_root=lease.operation_root
        ) as again:
            assert numbers(again.map(second.compute, PAGES[:7], second.write)) == [1, 2, 3]
        with connect().hold(
            RESOURCE, operation="settle", continues_root=again.operation_root
        ) as last:
            assert numbers(last.map(later.compute, PAGES, later.write)) == [1, 2, 3]
            assert last.map(later.compute, PAGES, later.write) == []
        assert later.computed == [8, 9, 10]
    assert numbers(first_receipts) == [1, 2, 3, 4]
    assert sorted(second.computed) == second.written == [5, 6, 7]
    assert settled(served) == (PAGES[:7] if same else PAGES)


def test_r46_who_waited_takes_up_what_was_done_meanwhile(
    connect: Connect, served: Database, registered: Database
) -> None:
    works = [Settling() for _ in range(3)]

    def map_all(role: str, work: Settling, pages: list[int]) -> None:
        with connect(role).hold(RESOURCE, operation="settle", take_up=True) as lease:
            lease.map(work.compute, pages, work.write)

    with connect().hold(RESOURCE, operation="settle", take_up=True) as lease:
        later = [in_background(partial(map_all, "worker_b", work, PAGES)) for work in works[1:]]
        wait_until(lambda: count(registered, WAITING) == 2, "two others wait")
        lease.map(works[0].compute, PAGES[:4], works[0].write)
    for result in later:
        result.result(PATIENCE)
    map_all("worker_a", works[0], PAGES)
    assert sorted(page for work in works for page in work.written) == PAGES
    assert sorted(len(work.computed) for work in works) == [0, 4, 6]
    assert settled(served) == PAGES


def test_r46_taking_up_waits_no_longer_than_it_may_and_makes_up_its_own_request(
    connect: Connect,
) -> None:
    with connect().hold(RESOURCE, operation="settle", take_up=True) as lease:
        with (
            pytest.raises(errors.AcquireTimeoutError),
            connect("worker_b").hold(RESOURCE, operation="settle", take_up=True, timeout=0),
        ):
            pytest.fail("held by two")
        for mistake in ({"request_id": "batch-7"}, {"continues_root": lease.operation_root}):
            with (
                pytest.raises(errors.InvalidArgumentError, match="leave out request_id"),
                connect().hold(RESOURCE, operation="settle", take_up=True, **mistake),
            ):
                pytest.fail("it was asked for")


def test_r46_taking_up_goes_over_a_new_connection_where_the_idle_one_was_lost(
    connect: Connect, served: Database
) -> None:
    with proxy_to(served.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle") as lease:
            lease.apply(1, lambda execute: execute(SETTLE, 1, "settled"))
        proxy.cut()
        with fence.hold(RESOURCE, operation="settle", take_up=True) as later:
            assert later.grant.continues_root == lease.operation_root


@pytest.mark.parametrize("by", ["the same owner", "a successor"])
def test_r12_what_stands_with_another_payload_is_not_passed_over(
    connect: Connect, served: Database, by: str
) -> None:
    first, second = Settling(), Settling()
    other = [1, 2, 33, 4, 5]
    quarantined = "select count(*) from pgfence.quarantined_segments"
    with connect().hold(RESOURCE, operation="settle") as lease:
        lease.map(first.compute, PAGES[:3], first.write)
        if by == "the same owner":
            with pytest.raises(errors.PayloadConflictError):
                lease.map(second.compute, other, second.write)
            assert count(served, quarantined) == 1
    if by == "a successor":
        with (
            connect("worker_b").hold(
                RESOURCE, operation="settle", continues_root=lease.operation_root
            ) as again,
            pytest.raises(errors.PayloadConflictError, match="segment 3 of this operation"),
        ):
            again.map(second.compute, other, second.write)
    assert second.computed == []
    assert count(served, RECEIPTS) == 3


def test_r46_a_payload_says_what_an_item_is_and_may_be_another_than_the_item(
    connect: Connect,
) -> None:
    class Page:
        def __init__(self, number: int) -> None:
            self.number = number

    settling = Settling()
    pages = [Page(number) for number in PAGES]
    with connect().hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(errors.PayloadError):
            lease.map(lambda page: settling.compute(page.number), pages, settling.write)
        lease.map(
            lambda page: settling.compute(page.number),
            pages[:3],
            settling.write,
            payload=lambda page: {"page": page.number},
        )
        (receipt,) = lease.map(settling.compute, [4], settling.write, first=4)
    assert receipt.segment_seq == 4
    assert settling.written == [1, 2, 3, 4]


@pytest.mark.parametrize("where", ["compute", "work", "items", "payload"])
def test_r46_what_fails_stops_in_order_and_can_be_gone_on_with(
    connect: Connect, served: Database, where: str
) -> None:
    settling = Settling()
    damaged = True

    def fail(here: str, page: int) -> int:
        if damaged and where == here and page == 5:
            raise ValueError("page 5 is damaged")
        return page

    def compute(page: int) -> int:
        return settling.compute(fail("compute", page))

    def write(execute: Execute, computed: int) -> None:
        settling.write(execute, computed)
        fail("work", -computed)

    def items() -> Iterator[int]:
        for page in PAGES:
            yield fail("items", page)

    with connect().hold(RESOURCE, operation="settle") as lease:
        with pytest.raises(ValueError, match="page 5 is damaged"):
            lease.map(compute, items(), write, payload=lambda page: fail("payload", page))
        assert settled(served) == [1, 2, 3, 4]
        assert count(served, RECEIPTS) == 4
        damaged = False
        assert numbers(lease.map(compute, items(), write)) == [5, 6, 7, 8, 9, 10]
    assert settled(served) == PAGES


def test_r46_segments_that_are_no_items_may_come_before(connect: Connect) -> None:
    settling = Settling()
    with connect().hold(RESOURCE, operation="settle") as lease:
        lease.apply("header", lambda execute: None)
        for _ in range(2):
            lease.map(settling.compute, PAGES[:3], settling.write, first=2)
            lease.map(settling.compute, PAGES[3:], settling.write, first=5)
        assert lease.next_segment == 12
        with pytest.raises(errors.SegmentGapError):
            lease.map(settling.compute, [1], settling.write, first=14)
    assert settling.written == PAGES


def test_r12_somebody_else_s_segment_in_between_is_noticed(
    connect: Connect, served: Database
) -> None:
    settling = Settling()
    with connect().hold(RESOURCE, operation="settle") as lease:

        def compute(page: int) -> int:
            if page == 3:
                lease.apply("out of turn", lambda execute: None)
            return settling.compute(page)

        with pytest.raises(errors.PayloadConflictError):
            lease.map(compute, PAGES[:3], settling.write, workers=1, ahead=1)
    assert settling.written == [1, 2]
    assert count(served, RECEIPTS) == 3


def test_r46_a_lost_lease_ends_the_computing(
    connect: Connect, served: Database, registered: Database
) -> None:
    settling = Settling()
    begun: list[int] = []  # what is computed in a thread may end after `map`

    def compute(page: int) -> int:
        begun.append(page)
        if page == 3:
            # A segment under way would end otherwise.
            wait_until(lambda: settled(served) == [1, 2], "those before are applied")
            end_lease(registered, lease.grant.lease)
            lease.renew_now()
        if page >= 3:
            assert lease.lost.wait(PATIENCE)
        return settling.compute(page)

    with connect().hold(RESOURCE, operation="settle", ttl=30) as lease:
        with pytest.raises(errors.NotHeldError):
            lease.map(compute, PAGES, settling.write, workers=2)
        taken = len(begun)
        with pytest.raises(errors.NotHeldError):
            lease.map(compute, PAGES, settling.write)
        assert len(begun) == taken < len(PAGES)
    assert settled(served) == settling.written == [1, 2]


def test_r42_doubt_holds_segments_back_and_they_are_applied_when_it_has_ended(
    connect: Connect, served: Database, registered: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """agenta#6530: one lost reply to a good renewal does not end the work."""
    caplog.set_level("DEBUG", "pgfence.client")
    settling = Settling()
    with proxy_to(registered.dsn("worker_a")) as proxy:
        fence = connect(registry_dsn=proxy.dsn)

        def compute(page: int) -> int:
            if page == 4:
                proxy.cut_when_used()
                lease.renew_now()
                wait_for_move(caplog, "RENEWING -> OWNERSHIP_UNKNOWN")
            return settling.compute(page)

        with fence.hold(RESOURCE, operation="settle", ttl=15) as lease:
            assert numbers(lease.map(compute, PAGES, settling.write)) == PAGES
            wait_for_move(caplog, "OWNERSHIP_UNKNOWN -> HELD")
            assert not lease.lost.is_set()
    assert settled(served) == PAGES


@pytest.mark.parametrize("lose", ["reply", "request"])
def test_r44_lost_acknowledgements_are_found_out_without_applying_twice(
    connect: Connect, served: Database, lose: str
) -> None:
    settling = Settling()
    with proxy_to(served.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)

        def write(execute: Execute, computed: int) -> None:
            settling.write(execute, computed)
            if settling.written.count(-computed) == 1 and -computed in (2, 3, 7):
                proxy.lose_reply_to_commit() if lose == "reply" else proxy.lose_commit()

        with fence.hold(RESOURCE, operation="settle", ttl=30) as lease:
            receipts = lease.map(settling.compute, PAGES, write)
    assert numbers(receipts) == PAGES
    assert [r.segment_seq for r in receipts if r.replayed] == ([2, 3, 7] if lose == "reply" else [])
    assert settled(served) == PAGES
    assert count(served, RECEIPTS) == 10


def test_r44_what_cannot_be_found_out_is_unknown_and_not_failed(
    connect: Connect, served: Database
) -> None:
    settling = Settling()
    with proxy_to(served.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)

        def write(execute: Execute, computed: int) -> None:
            settling.write(execute, computed)
            if computed == -2:
                proxy.lose_reply_to_commit()
                proxy.refuse_new()

        with fence.hold(RESOURCE, operation="settle", ttl=600) as lease:
            with pytest.raises(errors.MutationUnknownError) as caught:
                lease.map(settling.compute, PAGES, write)
            assert caught.value.segment_seq == 2
    assert settling.written == settled(served) == [1, 2]


def test_r44_a_segment_that_stood_unknown_is_passed_over_when_it_is_gone_on_with(
    connect: Connect, served: Database
) -> None:
    settling = Settling()
    with proxy_to(served.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=30) as lease:
            proxy.lose_reply_to_commit()
            with pytest.raises(errors.MutationUnknownError):
                lease.apply(1, lambda execute: settling.write(execute, -1))
            assert numbers(lease.map(settling.compute, PAGES, settling.write)) == PAGES[1:]
    assert settling.written == PAGES


def test_r28_in_shadow_it_goes_on_whatever_would_be_refused(
    connect: Connect,
    in_shadow: Database,  # noqa: F811
    end: Callable[[Lease], str],
) -> None:
    settling, refusals = Settling(), []
    with connect().hold(RESOURCE, operation="settle", ttl=6) as lease:

        def write(execute: Execute, computed: int) -> None:
            settling.write(execute, computed)
            if computed == -2:
                refusals.append(end(lease))

        receipts = lease.map(settling.compute, PAGES, write)
        assert [receipt.would_refuse for receipt in receipts] == [None] * 2 + refusals * 8
    assert settled(in_shadow) == PAGES


@pytest.mark.parametrize("options", [{"workers": 0}, {"ahead": -1}, {"first": 0}, {"workers": 1.5}])
def test_numbers_that_make_no_sense_are_refused(connect: Connect, options: dict[str, Any]) -> None:
    settling = Settling()
    with (
        connect().hold(RESOURCE, operation="settle") as lease,
        pytest.raises(errors.InvalidArgumentError, match=next(iter(options))),
    ):
        lease.map(settling.compute, PAGES, settling.write, **options)
    assert settling.computed == []
