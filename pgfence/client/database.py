"""What a Fence and its Leases share: how to reach the database, trust, and what they know of it."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from pgfence.client.acknowledged import Acknowledged
from pgfence.client.protocol import Introduction, On, Steps
from pgfence.client.trust import Verifier
from pgfence.clock import monotonic
from pgfence.coordinators.protocol import Claimant
from pgfence.errors import ForkedError


class AnySession(Protocol):
    """What every driver's session has besides `run`. None of it waits."""

    #: Seconds that connecting may take, where the DSN does not say.
    connect_timeout: float

    def wake(self) -> None:
        """End a `Sleep` of the steps that it runs."""

    def stop_work(self) -> None:
        """Cancel what the work function waits for, or the call that admits it; never a COMMIT.

        For good: nothing of the kind begins on this session any more.
        """

    def close(self) -> None:
        """Close the connection; the next step opens another one."""


S = TypeVar("S", bound=AnySession)
_T = TypeVar("_T")

#: Connections kept for the next lease: that of its registry calls, and that of its segments.
_KEPT = 2
#: Seconds that connecting may take at most, where the DSN does not say.
_LONGEST_CONNECT = 10.0


class Pool(Generic[S]):
    """Connections to one database, for several threads. No I/O: sessions connect later.

    make: makes a session.
    """

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._idle: list[S] = []
        self._closed = False

    def session(self, connect_timeout: float = _LONGEST_CONNECT) -> S:
        """A connection of ours that nobody else uses; `put_back` it."""
        with self._lock:
            session = self._idle.pop() if self._idle else None
        session = session or self._make()
        session.connect_timeout = min(connect_timeout, _LONGEST_CONNECT)
        return session

    def put_back(self, session: S) -> None:
        """Keep a session for the next one who asks, or close it."""
        with self._lock:
            if not self._closed and len(self._idle) < _KEPT:
                self._idle.append(session)
                return
        session.close()

    @contextmanager
    def lent(self) -> Iterator[S]:
        """A session for the length of the block."""
        session = self.session()
        try:
            yield session
        finally:
            self.put_back(session)

    def close(self) -> None:
        """Close what is idle now, and what is put back later."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()


class Database(Pool[S]):
    """A guarded database and its registry, for the process that connected to it.

    found: what the first session learned. claimant: by way of which coordinator resources are
    asked for. registry: the database of the registry, where it is another one; the clocks of the
    two differ by at most `tolerance` seconds.
    """

    def __init__(
        self,
        make: Callable[[], S],
        found: Introduction,
        claimant: Claimant,
        registry: Pool[S] | None = None,
        tolerance: float = 0.0,
    ) -> None:
        super().__init__(make)
        self.claimant = claimant
        self.audience = found.bundle.audience
        server_us = round(found.server_time.timestamp() * 1_000_000)
        self.verifier = Verifier(
            found.bundle,
            lambda: server_us + round((monotonic() - found.asked_at) * 1_000_000),
        )
        self.acknowledged = Acknowledged()
        self.elsewhere = registry is not None
        self.registry: Pool[S] = registry or self
        self.tolerance = tolerance
        self._process = os.getpid()

    def at_resource(self, steps: Steps[_T]) -> Steps[_T]:
        """On a session of the registry: steps that are for the guarded database."""
        if not self.elsewhere:
            return (yield from steps)
        with self.lent() as session:
            result: _T = yield On(session, steps)
        return result

    def close(self) -> None:
        """Close what is idle now, and what is put back later."""
        super().close()
        if self.elsewhere:
            self.registry.close()

    def refuse_fork(self) -> None:
        """Raise `ForkedError` in a child of the process that connected.

        Parent and child would speak on one connection and renew one lease.
        """
        if os.getpid() != self._process:
            raise ForkedError(f"this handle belongs to process {self._process}")


def arranged(
    makers: Sequence[Callable[[], S]],
    sessions: Sequence[S],
    found: Introduction,
    claimant: Claimant,
    tolerance: float,
) -> Database[S]:
    """The database, and its registry's where there is a second maker and session."""
    make, *others = makers
    registry = Pool(others[0]) if others else None
    database = Database(make, found, claimant, registry, tolerance)
    for pool, session in zip((database, database.registry), sessions, strict=False):
        pool.put_back(session)
    return database
