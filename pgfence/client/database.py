"""What a Fence and its Leases share: how to reach the database, and the trust in its grants."""

import os
import threading
import time
from collections.abc import Callable

from pgfence.client import protocol
from pgfence.client.trust import Verifier
from pgfence.drivers.psycopg import Session
from pgfence.errors import ForkedError

#: Linux counts the time that a machine was suspended only on this clock; elsewhere time.monotonic.
_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """The worker's own clock in seconds: it never goes back, and stands still for nobody (R43)."""
    return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)


#: Connections kept for the next lease: that of its registry calls, and that of its segments.
_KEPT = 2


class Database:
    """A guarded database, for the process that connected to it."""

    def __init__(self, dsn: str, prepare_threshold: int | None, verifier: Verifier) -> None:
        self.verifier = verifier
        self._dsn = dsn
        self._prepare_threshold = prepare_threshold
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._closed = False

    def session(
        self, connect_timeout: float = 10.0, nap: Callable[[float], object] = time.sleep
    ) -> Session:
        """A connection of ours that nobody else uses; `put_back` it."""
        with self._lock:
            session = self._idle.pop() if self._idle else None
        session = session or Session(self._dsn, prepare_threshold=self._prepare_threshold)
        session.connect_timeout, session.nap = connect_timeout, nap
        return session

    def put_back(self, session: Session) -> None:
        """Keep a session for the next one who asks, or close it."""
        with self._lock:
            if not self._closed and len(self._idle) < _KEPT:
                self._idle.append(session)
                return
        session.close()

    def follow_bundle(self, session: Session | None = None) -> bool:
        """Trust the bundle that is in force now, if it follows from ours; whether it is a new one.

        session: one to ask on. Raises `BundleSplitError` (R33), and what the database raises.
        """
        asking = session or self.session()
        try:
            return self.verifier.follow(lambda bundle: asking.run(protocol.follow(bundle)))
        finally:
            if session is None:
                self.put_back(asking)

    def close(self) -> None:
        """Close what is idle now, and what is put back later."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def refuse_fork(self) -> None:
        """Raise `ForkedError` in a child of the process that connected.

        Parent and child would speak on one connection and renew one lease.
        """
        if os.getpid() != self._process:
            raise ForkedError(f"this handle belongs to process {self._process}")
