"""Items computed concurrently, and applied in order as the segments of an operation (R46). No I/O.

Item number n is segment n of the operation, whoever owned it: what stands already is compared with
its receipt and left out (R12), the others are computed, several at once, and applied one after the
other. `in_order` is a generator like those of the protocol; a lease carries its steps out, with
threads or with tasks.

    Standing(after)    read receipts of the operation; reply: number and payload digest of each,
                       in order, after number `after`, as many as are convenient
    Conflict(segment)  a segment stands with another payload: raise the error, or let it be done
                       once more
    Compute(item)      begin to compute; reply: whatever stands for the computation
    Ready(task)        reply: whether it has ended
    Result(task)       wait for it; reply: its result, or what it raised is thrown
    Hold()             wait while ownership is in doubt (R42)
    Apply(segments)    commit the segments together, in one transaction; reply: their receipts
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from pgfence import errors
from pgfence.model.payload import payload_digest, payload_text
from pgfence.model.receipt import Receipt

_log = logging.getLogger("pgfence.client")
_T = TypeVar("_T")


class Segment(NamedTuple):
    """One item on its way: its number, the text of its payload, and what was computed for it."""

    number: int
    payload: str
    computed: Any


class Standing(NamedTuple):
    """Read the receipts of the operation."""

    after: int


class Conflict(NamedTuple):
    """Say that a segment stands with another payload."""

    segment: Segment


class Compute(NamedTuple):
    """Begin to compute."""

    item: Any


class Ready(NamedTuple):
    """Ask whether a computation has ended."""

    task: Any


class Result(NamedTuple):
    """Wait for a computation."""

    task: Any


class Hold(NamedTuple):
    """Wait until the lease is confirmed."""


class Apply(NamedTuple):
    """Commit computed segments."""

    segments: Sequence[Segment]


Step = Standing | Conflict | Compute | Ready | Result | Hold | Apply
Steps = Generator[Step, Any, _T]

#: How often segments are applied before their outcome counts as unknown.
_ATTEMPTS = 5


def in_order(
    items: Iterable[Any],
    payload: Callable[[Any], object],
    *,
    first: int,
    standing: int,
    ahead: int,
    together: int,
    told: Callable[[int], object],
) -> Steps[list[Receipt]]:
    """Apply what does not stand yet; the receipts of it.

    payload: what an item's segment says that it does. first: the number of the first item.
    standing: how many segments of the operation stand. ahead: how many items are at most between
    being taken from `items` and being applied. together: how many go into one transaction. told:
    is called with the number of items that stand now and did not when it was called before.

    What a computation raises, or `items` and `payload` do, is raised when everything before it has
    been applied; nothing after it is.
    """
    source = _numbered(items, payload, first)
    tasks: deque[Segment] = deque()  # in place of what is computed stands who computes it
    receipts: list[Receipt] = []
    failure: Exception | None = None
    digests: dict[int, str] = {}
    read_to = 0
    more = True
    while more or tasks:
        if more and len(tasks) < ahead and not (yield from _is_ready(tasks, together)):
            try:
                number, text, item = next(source)
            except StopIteration:
                more = False
                continue
            except Exception as error:
                more, failure = False, error
                continue
            if number <= standing:
                if number > read_to:
                    digests = dict((yield Standing(number - 1)))
                    read_to = max(digests, default=standing)
                if number not in digests:
                    _log.warning("segment %s was pruned: its payload was not compared", number)
                if digests.get(number) in (None, payload_digest(text)):
                    told(1)
                    continue
                yield Conflict(Segment(number, text, None))
            tasks.append(Segment(number, text, (yield Compute(item))))
            continue
        computed: list[Segment] = []
        while tasks and len(computed) < together:
            segment = tasks.popleft()
            try:
                result = yield Result(segment.computed)
            except Exception as error:
                more, failure = False, error
                tasks.clear()
            else:
                computed.append(segment._replace(computed=result))
        if computed:
            receipts += yield from _apply(computed)
            told(len(computed))
    if failure is not None:
        raise failure
    return receipts


def _apply(segments: Sequence[Segment]) -> Steps[list[Receipt]]:
    """Commit segments, and ask again when the answer to COMMIT was lost.

    With the same numbers and payloads that is not blind: what stands comes back, and nothing is
    applied twice (R12, R44). Raises `MutationUnknownError` when it cannot be found out.
    """
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            yield Hold()
            receipts: list[Receipt] = yield Apply(segments)
            return receipts
        except errors.MutationUnknownError as error:
            failure = error
        except errors.OwnershipUnknownError as error:
            failure = failure or error
        except Exception as error:
            if failure is None or isinstance(failure, errors.OwnershipUnknownError):
                raise
            raise failure from error
    assert failure is not None  # noqa: S101 - there was an attempt
    raise failure


def _numbered(
    items: Iterable[Any], payload: Callable[[Any], object], first: int
) -> Iterator[tuple[int, str, Any]]:
    for number, item in enumerate(items, first):
        yield number, payload_text(payload(item)), item


def _is_ready(tasks: Sequence[Segment], together: int) -> Steps[bool]:
    """Whether a transaction's worth of segments is computed, so that none waits for an item."""
    if len(tasks) < together:
        return False
    for index in range(together):
        if not (yield Ready(tasks[index].computed)):
            return False
    return True
