"""A resource that this process holds, for threads: apply segments, renew, release."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from pgfence import errors
from pgfence.client import protocol, segments
from pgfence.client.acquiring import Acquired, acquire
from pgfence.client.base import BaseLease, check_counts, refuse_unfinished
from pgfence.client.database import Database
from pgfence.client.progress import progress_bar
from pgfence.clock import moment
from pgfence.drivers.psycopg import Connection, Session, run
from pgfence.model.receipt import Position, Receipt
from pgfence.model.verdict import Verdict

_log = logging.getLogger("pgfence.client")

_T = TypeVar("_T")
_Item = TypeVar("_Item")
_Computed = TypeVar("_Computed")
#: What a work function gets: a psycopg connection, or what SQLAlchemy has in its place.
Tx = TypeVar("Tx", default=Connection)


def _bind(work: Callable[[Tx, _Computed], object], computed: _Computed) -> Callable[[Tx], object]:
    """The work of one item."""
    return lambda tx: work(tx, computed)


def _do(work: Callable[[Tx], object], tx: Tx) -> None:
    """Call a work function, which must be done when it returns."""
    refuse_unfinished(work(tx))


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
        if not self._is_lost():
            self._wait_over(moment(timeout))
        return self._is_lost()


class Lease(BaseLease[Session], Generic[Tx]):
    """A resource that this process holds; made by `Fence.hold`.

    Threads may share it: one segment is applied after the other.
    """

    def __init__(self, database: Database[Session], acquired: Acquired, session: Session) -> None:
        self._changed = threading.Condition()
        self._applying = threading.Lock()
        super().__init__(database, acquired, session)
        #: Set when the lease is lost.
        self.lost = Lost(self._is_lost, self._wait_over)
        self._keeper = self._start("", self._keep_held)

    @classmethod
    def acquire(
        cls, database: Database[Session], wanted: protocol.Request, timeout: float | None
    ) -> Self:
        """Ask for a resource and wait for it; see `Fence.hold`."""
        session = database.registry.session(connect_timeout=wanted.ttl_ms / 3000)
        try:
            acquired = session.run(acquire(database, wanted, timeout))
        except BaseException:
            database.registry.put_back(session)
            raise
        return cls(database, acquired, session)

    def take_over(self, until: float = inf) -> None:
        """Raise the fence where the registry is elsewhere; `Fence.hold` has done it (R21).

        Raises `AcquireTimeoutError` when the clock reaches `until` meanwhile.
        """
        with self._one_at_a_time():
            self._work_session.run(self._take_over(until))

    def wait_held(self, timeout: float | None = None) -> None:
        """Wait while ownership is unknown, until the registry confirms it.

        Raises `OwnershipUnknownError` after `timeout` seconds, and `NotHeldError` when the lease is
        over, which its deadline sees to.
        """
        self._check_usable()
        until = moment(timeout)
        with self._changed:
            while patience := self._doubt(until):
                self._changed.wait(patience)
        self.check()

    def on_lost(self, function: Callable[[], object]) -> None:
        """Call `function()` once when the lease is lost, in a daemon thread of its own.

        At once if it is lost already, and never if it is released first. What it raises is logged.
        Raises `InvalidArgumentError` for a function that must be awaited.
        """
        self._check_told(function)
        self._start("on_lost ", lambda: self._tell(function))

    def apply(
        self,
        payload: object,
        work: Callable[[Tx], object],
        *,
        segment: int | None = None,
    ) -> Receipt:
        """Commit one segment: `work(tx)` and its receipt, in one transaction (R15).

        payload: says what the segment does, see `payload_text`. work: writes the business rows in
        the open transaction of `tx`, which it must not end: a psycopg connection, or a SQLAlchemy
        Connection or Session where the fence was connected with that. It runs only if the segment
        is new. Where the segment was applied before, the original receipt comes back.
        segment: by default the one after the last. In shadow a refusal is logged as a warning,
        `work` runs, and `would_refuse` of the receipt names it (R28).

        Waits, as long as the lease lasts, for a transaction that is open on the resource. When the
        lease is lost meanwhile, or while `work` runs, the statement is cancelled and its connection
        is closed (in shadow it is left alone); `work` itself can look at `lease.lost`.

        Raises a `RefusedError` for a refusal, whose evidence is committed first, or in its place
        `BundleSplitError` when that is why, or `AcknowledgedSegmentsLostError` when earlier
        segments are no longer there (R47); what `work` raised, `LeaseEndedError`, and
        `InvalidArgumentError` when `work` returned a coroutine or a generator: then nothing was
        written; `MutationUnknownError` when the answer to COMMIT was lost: the same payload may be
        applied again, and nothing else until then; what `check` raises; `PayloadError`.
        """
        with self._one_at_a_time():
            return self._work_session.run(self._apply(payload, segment), partial(_do, work))

    def apply_many(
        self,
        segments: Sequence[tuple[object, Callable[[Tx], object]]],
        *,
        segment: int | None = None,
    ) -> list[Receipt]:
        """Commit several segments in one transaction: all of them, or none (R15).

        segments: for each its payload and its work, as in `apply`; the work of those that stood
        already does not run. segment: the number of the first, by default the one after the last.
        Returns a receipt for each. Raises what `apply` raises; a `MutationUnknownError` is about
        all of them.
        """
        if not segments:
            return []
        verdicts: list[Verdict] = []

        def work(tx: Tx) -> None:
            for (_, function), verdict in zip(segments, verdicts, strict=True):
                if verdict.lets_write:
                    _do(function, tx)

        payloads = [payload for payload, _ in segments]
        with self._one_at_a_time():
            return self._work_session.run(
                self._apply_many(payloads, segment, verdicts.extend), work
            )

    def map(
        self,
        compute: Callable[[_Item], _Computed],
        items: Iterable[_Item],
        work: Callable[[Tx, _Computed], object],
        *,
        payload: Callable[[_Item], object] = lambda item: item,
        workers: int = 4,
        ahead: int | None = None,
        together: int = 1,
        executor: Executor | None = None,
        first: int = 1,
        progress: bool = False,
    ) -> list[Receipt]:
        """Compute for several items at once, and apply them in order, one segment each (R46).

        compute: called with an item, outside of any transaction, in one of `workers` threads or in
        `executor`. work: called with `tx` and what was computed, in the segment's transaction, as
        in `apply`; once more if the answer to COMMIT was lost and nothing stood. payload: says of
        an item what its segment does, by default the item itself. ahead: how many items are at most
        taken from `items` and not applied, by default two for each worker. together: how many
        segments are committed in one transaction. progress: a bar on stderr, if that is a terminal.

        Item number n is segment n of the operation, whoever owned it (`continues_root`): what
        stands already is not computed again, and its payload must be the same. first: the number
        of the first item, where segments that are no items come before. Other segments must not be
        applied meanwhile.

        Returns the receipts of the segments that it applied. While ownership is unknown nothing is
        applied and computing goes on. It ends, with the earlier segments applied and no later one,
        with what `compute`, `work`, `payload` or `items` raised; when the lease is lost, with
        `NotHeldError`; with `PayloadConflictError`; and with what `apply` raises. Computations that
        are running then are waited for: long ones can look at `lease.lost`.
        """
        ahead = 2 * workers if ahead is None else ahead
        check_counts(workers=workers, ahead=ahead, together=together, first=first)
        self.wait_held()
        total, earlier = self._in_turn(self._stand())
        futures: set[Future[_Computed]] = set()
        pool = executor or ThreadPoolExecutor(workers, "pgfence map")

        def perform(step: segments.Step) -> object:
            match step:
                case segments.Standing(after):
                    return self._in_turn(self._standing(after, earlier))
                case segments.Conflict(segment):
                    return self._in_turn(self._conflict(segment, earlier))
                case segments.Compute(item):
                    self._check_not_lost()
                    future = pool.submit(compute, item)
                    futures.add(future)
                    future.add_done_callback(lambda _: self._moved())
                    return future
                case segments.Ready(task):
                    return task.done()
                case segments.Result(task):
                    self._wait_computed(task)
                    futures.discard(task)
                    return task.result()
                case segments.Hold():
                    self.wait_held()
                    return None
                case segments.Apply(computed):
                    return self.apply_many(
                        [(s.payload, _bind(work, s.computed)) for s in computed],
                        segment=self._own_number(computed[0], earlier),
                    )
            raise AssertionError(step)

        try:
            with progress_bar(self.resource, items, wanted=progress) as told:
                steps = segments.in_order(
                    items,
                    payload,
                    first=first,
                    standing=total,
                    ahead=max(ahead, together),
                    together=together,
                    told=told,
                )
                return run(steps, perform)
        finally:
            for future in futures:
                future.cancel()
            wait(futures)
            if executor is None:
                pool.shutdown()

    def advance(self) -> Verdict:
        """Raise the fence without writing, so that earlier owners are refused from now on (R21).

        Waits as `apply` does. Raises a `RefusedError` for a refusal, `LeaseEndedError` when the
        lease is lost meanwhile, and what `check` raises.
        """
        return self._in_turn(self._advance())

    def position(self) -> Position:
        """Where the receipts of the resource end: ask before the first segment."""
        return self._in_turn(protocol.position(self.resource))

    def release(self) -> None:
        """Give the lease back; waits for a segment that is being applied. Again: nothing.

        The handle is of no more use, also when the registry could not be told: the lease then ends
        by itself. It is completed also when the thread that waits for a segment is interrupted.
        Raises what the database raises.
        """
        if self._closed:
            return
        try:
            # Where another thread was faster while this one waited for the turn: nothing, too.
            with suppress(errors.HandleClosedError), self._one_at_a_time():
                self._give_up()
                self._keeper.join()
                try:
                    self._registry_session.run(self._release())
                finally:
                    self._put_back()
        except errors.PgfenceError:
            raise
        except BaseException:
            if not self._closed:
                self._start("release ", self._release_later)
            raise

    def _release_later(self) -> None:
        """Release for a thread that was interrupted, where nobody waits for it."""
        try:
            self.release()
        except Exception as error:
            _log.warning("%r was not released, it ends by itself: %s", self, error)

    def _keep_held(self) -> None:
        """Renew, and have work stopped when that is in vain: here, where nobody waits for it."""
        self._start("stop ", lambda: self._tell(self._stop_work))
        self._registry_session.run(self._keep())

    def _tell(self, function: Callable[[], object]) -> None:
        if self.lost.wait():
            self._call_lost(function)

    def _start(self, what: str, function: Callable[[], object]) -> threading.Thread:
        """A thread of this lease, which does not keep the process from ending."""
        name = f"pgfence {what}{self.grant.lease}"
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
        return thread

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        me = threading.get_ident()
        self._check_turn(me)
        with self._applying, self._turn(me):
            yield

    def _in_turn(self, steps: protocol.Steps[_T]) -> _T:
        """Drive steps without work of the caller's when it is our turn."""
        with self._one_at_a_time():
            return self._work_session.run(steps)

    def _wait_computed(self, future: Future[Any]) -> None:
        """Return when a computation has ended. Raises `NotHeldError` if the lease is lost first."""
        with self._changed:
            while not future.done():
                self._check_not_lost()
                self._changed.wait(None if self._in_shadow else self._left(inf))

    def _wait_over(self, until: float) -> None:
        with self._changed:
            while patience := self._left(until):
                self._changed.wait(patience)

    def _moved(self) -> None:
        with self._changed:
            self._changed.notify_all()
