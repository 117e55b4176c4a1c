"""What a generator of the protocol yields, for a driver to carry out, and hears of it.

A driver throws `Failed` for what the database or the connection reported, and any other exception
as it is.

Batch(calls)          run the calls, in one round trip if the driver can; reply: rows of each.
                      On a connection of ours they get a READ COMMITTED transaction of their
                      own, which stays open if `begin` is set; on a caller's connection they run
                      in the caller's transaction
Work()                run the caller's function in the open transaction. Reply: what it left of
                      the transaction, a `Left`
Commit()              end the transaction. Reply: `Left.ABORTED` where the server undid it,
                      because a statement had failed in it
Rollback()            undo it
Listen(channel)       LISTEN, within SHORTEST_CALL. Reply: whether notifications come; behind a
                      pooler they do not
Wait(seconds)         until a notification comes, or so long
Sleep(seconds)        so long, or until the caller has a reason to wake up
Run(function)         call it: it may wait for a lock service, so a task leaves it to a thread
Reopen(within)        a new connection in place of a lost one
On(session, steps)    carry out steps on another session, that of the other database where the
                      registry is not the resource's; reply: their result
"""

from collections.abc import Callable, Generator, Sequence
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

from pgfence import errors

Row = Sequence[Any]
Clock = Callable[[], float]
_T = TypeVar("_T")

#: Tries after a serialization failure or a deadlock that came before the caller's function ran.
ATTEMPTS = 3
TRY_AGAIN = frozenset({"40001", "40P01"})
#: Seconds that a call which may wait for a lock gets; LISTEN gets the shortest.
SHORTEST_CALL, LONGEST_CALL = 1.0, 30.0


def limit(left: float) -> float:
    """Seconds that a call gets of what is left to whoever waits for it."""
    return min(max(left, SHORTEST_CALL), LONGEST_CALL)


class Call(NamedTuple):
    """One statement: its text, with $1 placeholders, and its parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


class Batch(NamedTuple):
    """Calls that need not wait for each other.

    When they take longer than `within` seconds they are cancelled (SQLSTATE 57014), and when the
    server does not answer to that either, the connection is lost. Connecting first, where it must
    be, may take as long again. Calls with `begin` and without `within` take as long as they need,
    until the session's `stop_work`.
    """

    calls: tuple[Call, ...]
    begin: bool = False
    within: float | None = None


class Work(NamedTuple):
    """The caller's own statements."""


class Commit(NamedTuple):
    """End the transaction."""


class Rollback(NamedTuple):
    """Undo the transaction."""


class Listen(NamedTuple):
    """Hear the notifications of a channel."""

    channel: str


class Wait(NamedTuple):
    """Wait for a notification."""

    seconds: float


class Sleep(NamedTuple):
    """Wait for time to pass."""

    seconds: float


class Run(NamedTuple):
    """Call a function that may wait for something other than the database."""

    function: Callable[[], object]


class Reopen(NamedTuple):
    """Replace a lost connection, within so many seconds or what the session has for connecting."""

    within: float = inf


class On(NamedTuple):
    """Steps for another session of the same driver."""

    session: Any
    steps: "Steps[Any]"


Step = Batch | Work | Commit | Rollback | Listen | Wait | Sleep | Run | Reopen | On
Steps = Generator[Step, Any, _T]


class Left(StrEnum):
    """What the caller's function left of the transaction."""

    OPEN = "OPEN"
    ABORTED = "ABORTED"
    ENDED = "ENDED"


class Failed(Exception):  # noqa: N818 - a report, turned into an error by rethrow()
    """A step failed. `__cause__` is the driver's own exception.

    `lost` says that the connection is of no more use, so that whether the step took effect may be
    unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        lost: bool,
        sqlstate: str | None = None,
        detail: str | None = None,
        hint: str | None = None,
        rule: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.lost = lost
        self.sqlstate = sqlstate
        self.detail = detail
        self.hint = hint
        self.rule = rule

    @classmethod
    def of(cls, error: Exception, *, lost: bool) -> Self:
        """The report of what a driver raised, from which it is to be raised."""
        said = errors.said_by(error)
        return cls(
            said.message,
            lost=lost or said.fatal,
            sqlstate=said.sqlstate,
            detail=said.detail,
            hint=said.hint,
            rule=said.rule,
        )

    def rethrow(self) -> NoReturn:
        """Raise what the caller gets to see: our exception for our SQLSTATEs, else the driver's."""
        ours = errors.from_sqlstate(self.sqlstate, self.message, self.detail, self.hint, self.rule)
        cause = self.__cause__ or self
        if ours is not None:
            raise ours from cause
        raise cause from cause.__cause__


def rows_of(call: Call) -> Steps[Sequence[Row]]:
    """The rows of a call; what fails is raised as the caller gets to see it."""
    try:
        (rows,) = yield Batch((call,))
    except Failed as failed:
        failed.rethrow()
    found: Sequence[Row] = rows
    return found


def reopening(steps: Callable[[], Steps[_T]], within: float = inf) -> Steps[_T]:
    """Take steps, and once more on a new connection if the old one was lost; see `Reopen`."""
    try:
        try:
            return (yield from steps())
        except Failed as failed:
            if not failed.lost:
                raise
        yield Reopen(within)
        return (yield from steps())
    except Failed as failed:
        failed.rethrow()
