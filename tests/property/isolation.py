"""Runs short scripts of several sessions in a given order of steps, like PostgreSQL's own tests.

A step that has to wait for a lock is left waiting, and the other sessions go on; whether it waits
is asked of the server (pg_blocking_pids), never guessed from the time that has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.support import PATIENCE

#: One step: what a session does, and what came of it, in a word.
Step = Callable[[], str]


def orders(lengths: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every order in which sessions of so many steps can take turns."""
    if not any(lengths):
        yield ()
        return
    for session, length in enumerate(lengths):
        if length:
            rest = [n - (number == session) for number, n in enumerate(lengths)]
            for order in orders(rest):
                yield (session, *order)


@dataclass
class Session:
    """A backend with the steps that it has yet to take, each in a thread that may have to wait."""

    pid: int
    steps: list[Step]
    outcomes: list[str] = field(default_factory=list)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _running: Future[str] | None = None

    def start(self) -> None:
        self._running = self._pool.submit(_outcome, self.steps.pop(0))

    def finished(self, within: float = 0) -> bool:
        """Whether no step is under way, at the latest in so many seconds; notes the outcome."""
        if self._running is not None and wait([self._running], within).done:
            self.outcomes.append(self._running.result())
            self._running = None
        return self._running is None

    def close(self) -> None:
        self._pool.shutdown(wait=True)


def _outcome(step: Step) -> str:
    try:
        return step()
    except psycopg.Error as error:
        return error.sqlstate or type(error).__name__


def run(observer: psycopg.Connection[Any], sessions: list[Session], order: Sequence[int]) -> None:
    """Take the sessions' steps in that order, passing over sessions that wait for a lock."""
    turns = list(order)
    deadline = time.monotonic() + PATIENCE
    try:
        while turns or not all(session.finished() for session in sessions):
            assert time.monotonic() < deadline, "the sessions wait for each other for ever"
            ready = next((turn for turn in turns if sessions[turn].finished()), None)
            if ready is None:
                time.sleep(0.001)
                continue
            turns.remove(ready)
            sessions[ready].start()
            _settle(observer, sessions[ready], deadline)
    finally:
        for session in sessions:
            session.close()


def _settle(observer: psycopg.Connection[Any], session: Session, deadline: float) -> None:
    """Return when the session's step has ended or waits for another session."""
    while not session.finished(0.001):
        row = observer.execute("select pg_blocking_pids(%s) <> '{}'", [session.pid]).fetchone()
        if (row is not None and row[0]) or time.monotonic() > deadline:
            return
