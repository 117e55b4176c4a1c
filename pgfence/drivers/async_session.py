"""What the drivers share whose steps are awaited: the loop, and what to do after a cancellation."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, TypeVar, cast

from pgfence.client.protocol import (
    Batch,
    Commit,
    Failed,
    Left,
    Listen,
    On,
    Reopen,
    Rollback,
    Row,
    Run,
    Sleep,
    Step,
    Steps,
    Wait,
    Work,
)
from pgfence.drivers.psycopg import CANCEL, STOPPED

_S = TypeVar("_S")
_T = TypeVar("_T")
#: Seconds for which somebody who was cancelled still waits for an answer, before he cuts.
_LAST_WORD = 10.0
#: The loop itself refers to its tasks only weakly.
_unattended: set[asyncio.Task[Any]] = set()


def uncut(doing: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Do it in a task of its own: who is cancelled while it shields that task does not stop it."""
    task = asyncio.create_task(doing)
    _unattended.add(task)
    task.add_done_callback(_unattended.discard)
    return task


async def in_thread(function: Callable[[], _T]) -> _T:
    """Call it in a thread of its own: it may wait for long, and a pool would be full of those.

    Who is cancelled does not stop it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(_T, result))

    def call() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop may have ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=call, name="pgfence lock service", daemon=True).start()
    return await done


async def drive(
    steps: Generator[_S, Any, _T],
    perform: Callable[[_S], Awaitable[object]],
    resume: Callable[[], _S] | None = None,
    cancelled: Callable[[asyncio.CancelledError], Awaitable[_T]] | None = None,
) -> _T:
    """Drive a generator of steps to its result.

    resume: gets the first step, by default from the beginning. cancelled: carries on after a
    cancellation, which by default the steps get to know like any other exception.
    """
    resume = resume or partial(next, steps)
    try:
        while True:
            step = resume()
            try:
                # What fails on another session is not a failure of this one.
                reply = await (
                    step.session.run(step.steps) if isinstance(step, On) else perform(step)
                )
            except BaseException as error:
                if cancelled is not None and isinstance(error, asyncio.CancelledError):
                    return await cancelled(error)
                resume = partial(steps.throw, error)
            else:
                resume = partial(steps.send, reply)
    except StopIteration as stop:
        result: _T = stop.value
        return result


class AsyncSession(ABC):
    """A connection of our own: opened at the first step, and again after it was lost.

    Not for two tasks at once, and for the event loop in which it was first used.
    """

    def __init__(self) -> None:
        #: Seconds that connecting may take, where the DSN does not say.
        self.connect_timeout = 10.0
        self._wake = asyncio.Event()
        self._work: Callable[[Any], Awaitable[object]] | None = None
        #: Around the work function while it runs, or the call that admits it.
        self._stop: asyncio.Timeout | None = None
        self._stopped = False
        #: The last step that commits.
        self._committing: tuple[Step, asyncio.Task[Any]] | None = None
        #: What a run that was cancelled still has to do.
        self._rest: asyncio.Task[Any] | None = None

    async def run(
        self, steps: Steps[_T], work: Callable[[Any], Awaitable[object]] | None = None
    ) -> _T:
        """Drive `steps`; `work` is what a `Work` step awaits, with the connection.

        When a step is cancelled, the connection is given up, whatever it was about, and what the
        steps then still do (withdraw, for instance) is done in a task of its own: `run` waits for
        it unless it is cancelled once more, and the next `run` waits for it in any case.
        """
        while self._rest is not None:
            await asyncio.wait({self._rest})
        self._work = work
        self._wake.clear()
        handed_over = False

        async def hand_over(interrupt: asyncio.CancelledError) -> _T:
            nonlocal handed_over
            handed_over = True
            self._rest = task = uncut(self._finish(steps, interrupt))
            return await asyncio.shield(task)

        try:
            return await drive(steps, self._shielded, cancelled=hand_over)
        finally:
            if not handed_over:
                self._leave()

    async def _finish(self, steps: Steps[_T], interrupt: asyncio.CancelledError) -> _T:
        try:
            await self._end_of_commit()
            await self._abandon()
            return await drive(steps, self._perform, partial(steps.throw, interrupt))
        finally:
            self._rest = None
            self._leave()

    async def _shielded(self, step: Step) -> object:
        """Carry out a step. What commits is not cut by a cancellation: the server would do it all
        the same, and perhaps after what the steps do about the cancellation.
        """
        if not isinstance(step, Commit) and not (isinstance(step, Batch) and not step.begin):
            return await self._perform(step)
        task = uncut(self._perform(step))
        self._committing = step, task
        return await asyncio.shield(task)

    async def _end_of_commit(self) -> None:
        """Wait for a step that commits: not for long, and for calls only until they are cancelled.

        A COMMIT is never cancelled: behind synchronous replication it may then stand here and
        nowhere else.
        """
        if self._committing is None:
            return
        step, task = self._committing
        if not isinstance(step, Commit):
            task.cancel()
        await asyncio.wait({task}, timeout=_LAST_WORD)
        if not task.done():
            self._cut()
            await asyncio.wait({task}, timeout=_LAST_WORD)

    def _leave(self) -> None:
        """No transaction stays open on a session that is used again."""
        self._work = None
        if self._in_transaction():
            self._close()

    def wake(self) -> None:
        """End a `Sleep` of the steps that it runs."""
        self._wake.set()

    def stop_work(self) -> None:
        """Cancel the work function where it waits, or the call that admits it, and with it the
        statement that it waits for. Neither begins on this session any more.

        Nothing happens when it has returned: a COMMIT is never cancelled, because PostgreSQL may
        then have committed all the same.
        """
        self._stopped = True
        if self._stop is not None:
            loop = asyncio.get_running_loop()
            self._stop.reschedule(loop.time())
            loop.call_later(CANCEL, self._cut_silent, self._stop)

    def _cut_silent(self, stop: asyncio.Timeout) -> None:
        """Cut a connection on which what was stopped still waits for the server."""
        if self._stop is stop:
            self._cut()

    def close(self) -> None:
        """Close the connection, after what a cancelled run still has to do."""
        if self._rest is None:
            self._close()
        else:
            self._rest.add_done_callback(lambda _: self._close())

    async def _perform(self, step: Step) -> object:
        """Carry out a step; the driver's errors are raised as `Failed`."""
        match step:
            case Batch(begin=True, within=None):
                return await self._stoppable(self._batch(step))
            case Batch():
                return await self._batch(step)
            case Work():
                return await self._call_work()
            case Commit():
                return await self._commit()
            case Rollback():
                await self._roll_back()
            case Listen(channel):
                return await self._listen(channel)
            case Wait(seconds):
                await self._wait(seconds)
            case Sleep(seconds):
                await self._sleep(seconds)
            case Run(function):
                return await in_thread(function)
            case Reopen(within):
                self._close()
                await self._open(within)
        return None

    async def _run_work(self, conn: Any) -> None:
        assert self._work is not None  # noqa: S101 - run() was called with one
        await self._stoppable(self._work(conn))

    async def _stoppable(self, doing: Awaitable[_T]) -> _T:
        stop = asyncio.timeout(0 if self._stopped else None)
        try:
            async with stop:
                self._stop = stop
                try:
                    return await doing
                finally:
                    self._stop = None
        except TimeoutError as error:
            if not stop.expired():
                raise
            await self._abandon()
            raise Failed(STOPPED, lost=True) from error

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    @abstractmethod
    async def _open(self, within: float = inf) -> Any:
        """The connection; if there is none a new one, made within so many seconds."""

    @abstractmethod
    def _close(self) -> None:
        """Close the connection, without waiting."""

    def _cut(self) -> None:
        """Have whoever waits for the server on the connection wait no longer."""
        self._close()

    @abstractmethod
    async def _abandon(self) -> None:
        """Close the connection after a cancelled step, and have the server stop what it does."""

    @abstractmethod
    def _in_transaction(self) -> bool: ...

    @abstractmethod
    async def _batch(self, batch: Batch) -> list[list[Row]]: ...

    @abstractmethod
    async def _call_work(self) -> Left: ...

    @abstractmethod
    async def _commit(self) -> Left | None: ...

    @abstractmethod
    async def _roll_back(self) -> None: ...

    @abstractmethod
    async def _listen(self, channel: str) -> bool: ...

    @abstractmethod
    async def _wait(self, seconds: float) -> None: ...
