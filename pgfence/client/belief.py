"""What this process believes of its lease, as the clock and the lock service have it."""

import logging
import threading
from collections.abc import Callable

from pgfence import observe
from pgfence.client.protocol import Move
from pgfence.clock import monotonic
from pgfence.coordinators.protocol import Standing
from pgfence.model.lease import Ownership, State

_log = logging.getLogger("pgfence.client")


class Belief:
    """What this process believes of its lease; for several threads.

    standing: how the session at the lock service stands, beyond which nothing is believed.
    moved: called after each change of the state, by whoever changed it.
    """

    def __init__(
        self, name: str, standing: Callable[[], Standing], moved: Callable[[], object]
    ) -> None:
        self._name = name
        self._standing = standing
        self._moved = moved
        self._ownership = Ownership()
        self._held_at = monotonic()
        self._lock = threading.Lock()

    def change(self, move: Move) -> Ownership:
        """Replace the ownership by what `move` makes of it now."""
        with self._lock:
            before, now = self._ownership, monotonic()
            after = self._ownership = self._limited(move(before, now), now)
            if after.state is not before.state:
                _log_move(self._name, before, after)
                observe.moved(self._name, before, after, now - self._held_at)
        if after.state is not before.state:
            self._moved()
        return after

    def now(self) -> Ownership:
        """The ownership as the clock has it."""
        return self.change(Ownership.at)

    def _limited(self, ownership: Ownership, now: float) -> Ownership:
        match self._standing():
            case Standing.UNKNOWN:
                return ownership.doubted(now)
            case Standing.LOST:
                return ownership.ended(now, "EXPIRED")
        return ownership


def _log_move(name: str, before: Ownership, after: Ownership) -> None:
    worse = after.state in (State.OWNERSHIP_UNKNOWN, State.EXPIRED)
    _log.log(
        logging.WARNING if worse else logging.DEBUG,
        "%s: %s -> %s%s",
        name,
        before.state,
        after.state,
        f" ({after.reason})" if after.reason else "",
    )
