"""The clock that this process goes by."""

import time
from math import inf

#: Linux counts the time that a machine was suspended only on this clock; elsewhere time.monotonic.
_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """The process's own clock in seconds: it never goes back, and stands still for nobody (R43)."""
    return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)


def moment(seconds: float | None) -> float:
    """The clock's time in so many seconds; None is never."""
    return inf if seconds is None else monotonic() + seconds
