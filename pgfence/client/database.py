"""What a Fence and its Leases share: how to reach the database, and the trust in its grants."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pgfence.client.trust import Verifier
from pgfence.drivers.psycopg import Session
from pgfence.errors import ForkedError

#: Linux counts the time that a machine was suspended only on this clock; elsewhere time.monotonic.
_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """The worker's own clock in seconds: it never goes back, and stands still for nobody (R43)."""
    return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)


@dataclass(frozen=True)
class Database:
    """A guarded database, for the process that connected to it."""

    dsn: str = field(repr=False)
    prepare_threshold: int | None
    verifier: Verifier
    process: int = field(default_factory=os.getpid)

    def session(
        self, connect_timeout: float = 10.0, nap: Callable[[float], object] = time.sleep
    ) -> Session:
        """A new connection of ours, not opened yet."""
        return Session(
            self.dsn,
            prepare_threshold=self.prepare_threshold,
            connect_timeout=connect_timeout,
            nap=nap,
        )

    def refuse_fork(self) -> None:
        """Raise `ForkedError` in a child of the process that connected.

        Parent and child would speak on one connection and renew one lease.
        """
        if os.getpid() != self.process:
            raise ForkedError(f"this handle belongs to process {self.process}")
