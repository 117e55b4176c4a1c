"""A resource that this process holds, for tasks: as lease.py, and awaited."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from math import inf
from typing import Any, Self, TypeVar

from pgfence import errors
from pgfence.client import protocol, segments
from pgfence.client.acquiring import Acquired, acquire
from pgfence.client.base import BaseLease, check_counts, refuse_unfinished
from pgfence.client.database import Database
from pgfence.client.progress import progress_bar
from pgfence.clock import moment
from pgfence.drivers.async_session import AsyncSession, drive, uncut
from pgfence.model.receipt import Position, Receipt
from pgfence.model.verdict import Verdict

_T = TypeVar("_T")
_Item = TypeVar("_Item")
_Computed = TypeVar("_Computed")
#: The turns in whose work this task runs; a task that the work function starts inherits them.
_turns: ContextVar[tuple[object, ...]] = ContextVar("pgfence turns", default=())


def refuse_other_loop(loop: asyncio.AbstractEventLoop, handle: object) -> None:
    """Raise if this runs in an event loop that is not the handle's; in none it cannot wait."""
    with suppress(RuntimeError):
        if asyncio.get_running_loop() is not loop:
            raise errors.InvalidArgumentError(f"{handle!r} belongs to another event loop")


def _bind(
    work: Callable[[Any, _Computed], Awaitable[object]], computed: _Computed
) -> Callable[[Any], Awaitable[object]]:
    """The work of one item."""
    return lambda tx: work(tx, computed)


async def _do(work: Callable[[Any], Awaitable[object]], tx: Any) -> None:
    """Await a work function, which must be done then."""
    refuse_unfinished(await work(tx))


class AsyncLost:
    """Whether a lease was lost: like an `asyncio.Event` that nobody can set; see `Lost`."""

    def __init__(
        self, is_lost: Callable[[], bool], wait_over: Callable[[float], Awaitable[object]]
    ) -> None:
        self._is_lost = is_lost
        self._wait_over = wait_over

    def is_set(self) -> bool:
        """Whether it is lost by now, looking at the clock."""
        return self._is_lost()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is lost; False after `timeout` seconds, or when it has been released."""
        if not self._is_lost():
            await self._wait_over(moment(timeout))
        return self._is_lost()


class AsyncLease(BaseLease[AsyncSession]):
    """A resource that this process holds; made by `AsyncFence.hold`.

    Tasks of one event loop may share it: one segment is applied after the other. A loop that is
    blocked does not renew, and the lease ends by the clock all the same (R43).
    """

    def __init__(
        self, database: Database[AsyncSession], acquired: Acquired, session: AsyncSession
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._applying = asyncio.Lock()
        super().__init__(database, acquired, session)
        #: Set when the lease is lost.
        self.lost = AsyncLost(self._is_lost, self._wait_over)
        uncut(self._tell(self._stop_work))
        self._keeper = asyncio.create_task(
            session.run(self._keep()), name=f"pgfence {self.grant.lease}"
        )

    @classmethod
    async def acquire(
        cls, database: Database[AsyncSession], wanted: protocol.Request, timeout: float | None
    ) -> Self:
        """Ask for a resource and wait for it; see `Fence.hold`."""
        session = database.registry.session(connect_timeout=wanted.ttl_ms / 3000)
        try:
            acquired = await session.run(acquire(database, wanted, timeout))
        except BaseException:
            database.registry.put_back(session)
            raise
        return cls(database, acquired, session)

    async def take_over(self, until: float = inf) -> None:
        """As `Lease.take_over`."""
        async with self._one_at_a_time():
            await self._work_session.run(self._take_over(until))

    async def wait_held(self, timeout: float | None = None) -> None:
        """As `Lease.wait_held`."""
        self._check_usable()
        until = moment(timeout)
        while patience := self._doubt(until):
            await self._wait_for_move(patience)
        self.check()

    def on_lost(self, function: Callable[[], object]) -> None:
        """Call `function()` once when the lease is lost: `asyncio.current_task().cancel`, say.

        At once if it is lost already, and never if it is released first. What it raises is logged.
        Raises `InvalidArgumentError` for a function that must be awaited.
        """
        self._check_told(function)
        uncut(self._tell(function))

    async def _tell(self, function: Callable[[], object]) -> None:
        if await self.lost.wait():
            self._call_lost(function)

    async def apply(
        self,
        payload: object,
        work: Callable[[Any], Awaitable[object]],
        *,
        segment: int | None = None,
    ) -> Receipt:
        """Commit one segment: `await work(tx)` and its receipt, in one transaction (R15).

        As `Lease.apply`; `tx` is a psycopg `AsyncConnection`, an asyncpg `Connection`, or an
        AsyncConnection or AsyncSession of SQLAlchemy, as the fence was connected. Cancelled before
        COMMIT is sent, nothing was written, and the number is free; cancelled later, the segment is
        unknown like one whose answer was lost: the same payload may be applied again, and nothing
        else until then. When the lease is lost before `work` or while it runs, it is cancelled
        where it waits (in shadow it is left alone).
        """
        async with self._one_at_a_time():
            return await self._work_session.run(self._apply(payload, segment), partial(_do, work))

    async def apply_many(
        self,
        segments: Sequence[tuple[object, Callable[[Any], Awaitable[object]]]],
        *,
        segment: int | None = None,
    ) -> list[Receipt]:
        """As `Lease.apply_many`."""
        if not segments:
            return []
        verdicts: list[Verdict] = []

        async def work(tx: Any) -> None:
            for (_, function), verdict in zip(segments, verdicts, strict=True):
                if verdict.lets_write:
                    await _do(function, tx)

        payloads = [payload for payload, _ in segments]
        async with self._one_at_a_time():
            return await self._work_session.run(
                self._apply_many(payloads, segment, verdicts.extend), work
            )

    async def map(
        self,
        compute: Callable[[_Item], Awaitable[_Computed]],
        items: Iterable[_Item],
        work: Callable[[Any, _Computed], Awaitable[object]],
        *,
        payload: Callable[[_Item], object] = lambda item: item,
        workers: int = 4,
        ahead: int | None = None,
        together: int = 1,
        first: int = 1,
        progress: bool = False,
    ) -> list[Receipt]:
        """Compute for several items at once, and apply them in order, one segment each (R46).

        As `Lease.map`; `workers` tasks compute at a time. When it ends early, they are cancelled.
        """
        ahead = 2 * workers if ahead is None else ahead
        check_counts(workers=workers, ahead=ahead, together=together, first=first)
        await self.wait_held()
        total, earlier = await self._in_turn(self._stand())
        tasks: set[asyncio.Task[_Computed]] = set()
        slots = asyncio.Semaphore(workers)

        async def in_slot(item: _Item) -> _Computed:
            async with slots:
                return await compute(item)

        async def perform(step: segments.Step) -> object:
            match step:
                case segments.Standing(after):
                    return await self._in_turn(self._standing(after, earlier))
                case segments.Conflict(segment):
                    return await self._in_turn(self._conflict(segment, earlier))
                case segments.Compute(item):
                    self._check_not_lost()
                    task = asyncio.create_task(in_slot(item))
                    tasks.add(task)
                    task.add_done_callback(lambda _: self._changed.set())
                    return task
                case segments.Ready(task):
                    return task.done()
                case segments.Result(task):
                    while not task.done():
                        self._check_not_lost()
                        await self._wait_for_move(None if self._in_shadow else self._left(inf))
                    tasks.discard(task)
                    return task.result()
                case segments.Hold():
                    await self.wait_held()
                    return None
                case segments.Apply(computed):
                    return await self.apply_many(
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
                return await drive(steps, perform)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def while_held(self) -> AsyncIterator[None]:
        """Cancel the block when the lease is lost, which is `NotHeldError` for who is outside.

        Like `asyncio.timeout`: what the block awaits is cancelled. In shadow it is left alone.
        """
        self._check_not_lost()
        stop = asyncio.timeout(None)

        def cancel() -> None:
            if not self._in_shadow:
                stop.reschedule(self._loop.time())

        try:
            async with stop:
                watching = asyncio.create_task(self._tell(cancel))
                try:
                    yield
                finally:
                    watching.cancel()
        except TimeoutError:
            if stop.expired():
                self.check()
            raise

    async def advance(self) -> Verdict:
        """As `Lease.advance`."""
        return await self._in_turn(self._advance())

    async def position(self) -> Position:
        """As `Lease.position`."""
        return await self._in_turn(protocol.position(self.resource))

    async def release(self) -> None:
        """As `Lease.release`. It is completed also when the task that waits for it is cancelled."""
        if not self._closed:
            await asyncio.shield(uncut(self._finish()))

    async def _finish(self) -> None:
        # Where another task was faster while this one waited for the turn: nothing.
        with suppress(errors.HandleClosedError):
            async with self._one_at_a_time():
                self._give_up()
                await asyncio.wait({self._keeper})
                try:
                    await self._registry_session.run(self._release())
                finally:
                    self._put_back()

    @asynccontextmanager
    async def _one_at_a_time(self) -> AsyncIterator[None]:
        outer, mine = _turns.get(), object()
        self._check_turn(*outer)
        async with self._applying:
            _turns.set((*outer, mine))
            try:
                with self._turn(mine):
                    yield
            finally:
                _turns.set(outer)

    async def _in_turn(self, steps: protocol.Steps[_T]) -> _T:
        """Drive steps without work of the caller's when it is our turn."""
        async with self._one_at_a_time():
            return await self._work_session.run(steps)

    def _check_usable(self) -> None:
        super()._check_usable()
        refuse_other_loop(self._loop, self)

    async def _wait_over(self, until: float) -> None:
        while patience := self._left(until):
            await self._wait_for_move(patience)

    async def _wait_for_move(self, seconds: float | None) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _claim_changed(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(super()._claim_changed)

    def _moved(self) -> None:
        # The state may be asked for by any thread, and after the loop has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._changed.set)
