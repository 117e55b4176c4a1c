"""A session at a lock service, kept alive by a thread of its worker."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf

from pgfence.clock import monotonic
from pgfence.coordinators.protocol import Standing
from pgfence.errors import ClaimLostError, LockServiceError

_log = logging.getLogger("pgfence.coordinators")

#: Seconds between two attempts to reach a lock service that does not answer: doubled each time, and
#: no more than a part of what the session lasts.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0


class Session(ABC):
    """A session that ends unless it is kept alive.

    Its end is counted from when the last good question was SENT (R43): the lock service counts from
    when it came, which is later. Whatever else is known of the session, it is over by then.
    """

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self._deadline = inf
        self._doubted = False
        self._stopped = threading.Event()
        #: Set when its keeper shall ask at once.
        self._awake = threading.Event()
        self._told = Standing.HELD
        self._changed: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._keeper = threading.Thread(target=self._keep, name="pgfence session", daemon=True)

    @abstractmethod
    def _prolong(self) -> float | None:
        """Ask the lock service for more; seconds from now on, None when the session is over.

        Raises `LockServiceError` when it does not answer.
        """

    def begin(self, asked_at: float) -> None:
        """Keep it alive; it was made by a question sent at `asked_at`."""
        self._deadline = asked_at + self.ttl
        self._keeper.start()

    def stop(self) -> None:
        """Keep it alive no longer, and tell nobody what becomes of it. Waits for nothing."""
        self._stopped.set()
        self._awake.set()

    def standing(self) -> Standing:
        """How it stands now."""
        if monotonic() >= self._deadline:
            return Standing.LOST
        return Standing.UNKNOWN if self._doubted else Standing.HELD

    def listen(self, changed: Callable[[], object]) -> None:
        """Call `changed` whenever the standing has become another one."""
        self._changed.append(changed)

    def check(self, what: str) -> None:
        """Raise `ClaimLostError` if the session is over."""
        if self.standing() is Standing.LOST:
            raise ClaimLostError(
                f"the session at the lock service ended while it waited for {what}"
            )

    def doubt(self) -> None:
        """It is not known whether it stands: it is asked at once, and until there is an answer."""
        self._doubted = True
        self._awake.set()
        self._tell()

    def end(self) -> None:
        """It is over. A session that has ended does not begin again."""
        with self._lock:
            self._deadline = -inf
        self._tell()

    def _confirm(self, asked_at: float, seconds: float) -> None:
        with self._lock:
            if monotonic() < self._deadline:
                self._deadline = asked_at + seconds
                self._doubted = False
        self._tell()

    def _tell(self) -> None:
        standing = self.standing()
        if standing is not self._told and not self._stopped.is_set():
            _log.log(
                logging.DEBUG if standing is Standing.HELD else logging.WARNING,
                "session at the lock service: %s -> %s",
                self._told,
                standing,
            )
            self._told = standing
            for changed in self._changed:
                changed()

    def _keep(self) -> None:
        pause, failing = self.ttl / 3, False
        while True:
            wait = min(pause, self._deadline - monotonic(), threading.TIMEOUT_MAX)
            self._awake.wait(max(0.0, wait))
            self._awake.clear()
            if self._stopped.is_set():
                return
            asked_at = monotonic()
            if asked_at >= self._deadline:
                self.end()
                return
            try:
                seconds = self._prolong()
            except Exception as error:
                if self._stopped.is_set():
                    return  # whoever stopped it has closed what it asks with
                if not isinstance(error, LockServiceError):
                    raise
                if failing:
                    pause = min(2 * pause, _LONGEST_PAUSE, self.ttl / 10)
                else:
                    pause, failing = _FIRST_PAUSE, True
                    _log.warning("keeping the session alive failed: %s", error)
                self._doubted = True
                self._tell()
            else:
                if seconds is None:
                    self.end()
                    return
                self._confirm(asked_at, seconds)
                pause, failing = seconds / 3, False
