"""A resource that this process holds, for threads: apply segments, renew, release."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from pgfence.client import protocol
from pgfence.client.base import Acquired, BaseLease, acquire, moment
from pgfence.client.database import Database
from pgfence.drivers.psycopg import Connection, Session
from pgfence.model.receipt import Position, Receipt
from pgfence.model.verdict import Verdict


class Lost:
    """Whether a lease was lost: like a `threading.Event` that nobody can set.

    A lease is lost when it ends without having been released here: the registry says so, the
    database refuses it, or the worker's own clock reaches the end that was last confirmed (R43).
    In OWNERSHIP_UNKNOWN it is not lost.
    """

    def __init__(self, is_lost: Callable[[], bool], wait_over: Callable[[float], object]) -> None:
        self._is_lost = is_lost
        self._wait_over = wait_over

    def is_set(self) -> bool:
        """Whether it is lost by now, looking at the clock."""
        return self._is_lost()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is lost; False after `timeout` seconds, or when it has been released."""
        self._wait_over(moment(timeout))
        return self._is_lost()


class Lease(BaseLease[Session]):
    """A resource that this process holds; made by `Fence.hold`.

    Threads may share it: one segment is applied after the other.
    """

    def __init__(self, database: Database[Session], acquired: Acquired, session: Session) -> None:
        self._changed = threading.Condition()
        self._applying = threading.Lock()
        super().__init__(database, acquired, session)
        #: Set when the lease is lost.
        self.lost = Lost(self._is_lost, self._wait_over)
        self._stops_work = self._in_shadow
        self._keeper = threading.Thread(
            target=lambda: session.run(self._keep()),
            name=f"pgfence {self.grant.lease}",
            daemon=True,
        )
        self._keeper.start()

    @classmethod
    def acquire(
        cls, database: Database[Session], wanted: protocol.Request, timeout: float | None
    ) -> Self:
        """Ask for a resource and wait for it; see `Fence.hold`."""
        session = database.session(connect_timeout=wanted.ttl_ms / 3000)
        try:
            acquired = session.run(acquire(database, wanted, timeout))
        except BaseException:
            database.put_back(session)
            raise
        return cls(database, acquired, session)

    def wait_held(self, timeout: float | None = None) -> None:
        """Wait while ownership is unknown, until the registry confirms it.

        Raises `OwnershipUnknownError` after `timeout` seconds, and `NotHeldError` when the lease is
        over, which its deadline sees to.
        """
        until = moment(timeout)
        with self._changed:
            while patience := self._doubt(until):
                self._changed.wait(patience)
        self.check()

    def on_lost(self, function: Callable[[], object]) -> None:
        """Call `function()` once when the lease is lost, in a daemon thread of its own.

        At once if it is lost already, and never if it is released first. What it raises is logged.
        """
        self._check_usable()
        threading.Thread(
            target=lambda: self._call_lost(function) if self.lost.wait() else None,
            name=f"pgfence on_lost {self.grant.lease}",
            daemon=True,
        ).start()

    def apply(
        self,
        payload: object,
        work: Callable[[Connection], object],
        *,
        segment: int | None = None,
    ) -> Receipt:
        """Commit one segment: `work(tx)` and its receipt, in one transaction (R15).

        payload: says what the segment does, see `payload_text`. work: writes the business rows on
        `tx`, a psycopg connection with an open transaction that it must not end; it runs only if
        the segment is new. Where the segment was applied before, the original receipt comes back.
        segment: by default the one after the last. In shadow a refusal is logged as a warning,
        `work` runs, and `would_refuse` of the receipt names it (R28).

        When the lease is lost while `work` runs, its statement is cancelled and its connection is
        closed (in shadow it is left alone); `work` itself can look at `lease.lost`.

        Raises a `RefusedError` for a refusal, whose evidence is committed first, or in its place
        `BundleSplitError` when that is why, or `AcknowledgedSegmentsLostError` when earlier
        segments are no longer there (R47); what `work` raised, and `LeaseEndedError`: then nothing
        was written; `MutationUnknownError` when the answer to COMMIT was lost: the same payload may
        be applied again, and nothing else until then; what `check` raises; `PayloadError`.
        """
        with self._one_at_a_time():
            if not self._stops_work:
                self._stops_work = True
                self.on_lost(self._work_session.stop_work)
            return self._work_session.run(self._apply(payload, segment), work)

    def advance(self) -> Verdict:
        """Raise the fence without writing, so that earlier owners are refused from now on (R21).

        Raises a `RefusedError` for a refusal, and what `check` raises.
        """
        with self._one_at_a_time():
            return self._work_session.run(self._advance())

    def position(self) -> Position:
        """Where the receipts of the resource end: ask before the first segment."""
        with self._one_at_a_time():
            return self._work_session.run(protocol.position(self.resource))

    def release(self) -> None:
        """Give the lease back; waits for a segment that is being applied. Again: nothing.

        The handle is of no more use, also when the registry could not be told: the lease then ends
        by itself. Raises what the database raises.
        """
        if self._closed:
            return
        with self._one_at_a_time():
            self._give_up()
            self._keeper.join()
            try:
                self._registry_session.run(self._release())
            finally:
                self._put_back()

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        me = threading.get_ident()
        self._check_turn(me)
        with self._applying, self._turn(me):
            yield

    def _wait_over(self, until: float) -> None:
        with self._changed:
            while patience := self._left(until):
                self._changed.wait(patience)

    def _moved(self) -> None:
        with self._changed:
            self._changed.notify_all()
