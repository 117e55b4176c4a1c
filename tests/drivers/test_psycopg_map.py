"""lease.map with executors of the caller's, forked processes, and a progress bar."""

from __future__ import annotations

import io
import multiprocessing
import os
import pty
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import pgfence
from tests.registry import registry
from tests.support import PATIENCE, Database, Keys

RESOURCE = "invoice-batch/2026-07-19"
PAGES = list(range(1, 11))

#: What a forked child finds in the memory that it has inherited.
_held: list[pgfence.Lease] = []


@pytest.fixture
def lease(database: Database, keys: Keys) -> Iterator[pgfence.Lease]:
    with (
        registry(database, keys),
        pgfence.connect(database.dsn("worker_a")) as fence,
        fence.hold(RESOURCE, operation="settle", ttl=60) as lease,
    ):
        _held.append(lease)
        yield lease
        _held.clear()


def double(page: int) -> tuple[int, int]:
    return 2 * page, os.getpid()


def nothing(tx: Any, computed: Any) -> None:
    pass


def use_the_lease(page: int) -> str:
    """What a child must not do; it says what it was told."""
    (lease,) = _held
    said = []
    uses: list[Any] = [
        lambda: lease.apply(page, lambda tx: None),
        lambda: lease.map(double, [page], nothing),
        lease.check,
        lease.wait_held,
        lease.advance,
        lease.position,
        lease.lost.is_set,
        lambda: lease.lost.wait(0),
        lambda: lease.on_lost(print),
        lease.release,
    ]
    for use in uses:
        try:
            use()
        except pgfence.PgfenceError as error:
            said.append(type(error).__name__)
        else:
            said.append("nothing")
    return " ".join(said)


def test_an_executor_of_the_caller_s_computes_and_lives_on(lease: pgfence.Lease) -> None:
    with ThreadPoolExecutor(2, "of the caller's") as executor:
        names: list[str] = []

        def compute(page: int) -> str:
            return threading.current_thread().name

        def work(tx: Any, name: str) -> None:
            names.append(name)

        assert len(lease.map(compute, PAGES, work, executor=executor)) == len(PAGES)
        assert all(name.startswith("of the caller's") for name in names)
        assert executor.submit(double, 1).result()[0] == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_compute_and_what_they_return_is_applied_in_order(lease: pgfence.Lease) -> None:
    computed: list[tuple[int, int]] = []
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=fork) as executor:
        lease.map(double, PAGES, lambda tx, result: computed.append(result), executor=executor)
    assert [doubled for doubled, _ in computed] == [2 * page for page in PAGES]
    assert os.getpid() not in {pid for _, pid in computed}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_r35_a_child_that_was_forked_in_the_middle_of_map_is_refused_the_lease(
    lease: pgfence.Lease,
) -> None:
    said: list[str] = []
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=fork) as executor:
        # The first item forks, while the lease is renewed and the others wait.
        lease.map(use_the_lease, [1, 2], lambda tx, answer: said.append(answer), executor=executor)
    assert said == [" ".join(["ForkedError"] * 10)] * 2
    # The parent's lease is none the worse.
    assert lease.apply(3, lambda tx: None).segment_seq == 3


def test_what_still_computes_is_waited_for_and_what_has_not_begun_is_not_begun(
    lease: pgfence.Lease,
) -> None:
    begun: list[int] = []
    ended: list[int] = []
    all_taken, rest_cancelled = threading.Event(), threading.Event()
    cancelled: list[Future[Any]] = []

    def note(future: Future[Any]) -> None:
        if future.cancelled():
            cancelled.append(future)
        if len(cancelled) == len(PAGES) - 2:
            rest_cancelled.set()

    class Pool(ThreadPoolExecutor):
        def submit(self, *call: Any, **arguments: Any) -> Future[Any]:
            future = super().submit(*call, **arguments)
            future.add_done_callback(note)
            return future

    def items() -> Iterator[int]:
        yield from PAGES
        all_taken.set()

    def compute(page: int) -> None:
        begun.append(page)
        if page == 1:
            assert all_taken.wait(PATIENCE)
            raise ValueError("page 1 is damaged")
        # Runs when the first one has failed, if it was quicker than the cancellation.
        assert rest_cancelled.wait(PATIENCE)
        ended.append(page)

    with Pool(1) as pool:
        with pytest.raises(ValueError, match="damaged"):
            lease.map(compute, items(), nothing, ahead=len(PAGES) + 1, executor=pool)
        assert begun in ([1], [1, 2])
        assert ended == begun[1:]


def test_a_progress_bar_is_shown_on_a_terminal_and_nowhere_else(
    lease: pgfence.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        lease.map(double, PAGES, nothing, progress=True)
    shown = b""
    with suppress(OSError):  # Linux: the other side is gone
        while more := os.read(ours, 65536):  # what was written at once need not come at once
            shown += more
    os.close(ours)
    assert RESOURCE.encode() in shown
    assert b"100%" in shown

    quiet = io.StringIO()
    monkeypatch.setattr(sys, "stderr", quiet)
    lease.map(double, [*PAGES, 11], nothing, progress=True)
    assert quiet.getvalue().strip() == ""
