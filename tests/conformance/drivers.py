"""How the suite speaks to a driver: synchronously, whatever the driver is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import psycopg
from psycopg.rows import dict_row

import pgfence
from pgfence.model.outcome import Outcome
from pgfence.model.receipt import Position, Receipt
from pgfence.model.verdict import Verdict

#: Runs one statement with $1 placeholders in the open transaction.
Execute = Callable[..., object]


class Lost(Protocol):
    """What the suite uses of a lease's event."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Lease(Protocol):
    """What the suite uses of a lease."""

    token: str
    lost: Lost

    @property
    def resource(self) -> str: ...
    @property
    def fence_token(self) -> int: ...
    @property
    def next_segment(self) -> int: ...
    @property
    def operation_root(self) -> str: ...
    @property
    def state(self) -> pgfence.State: ...
    @property
    def grant(self) -> Any: ...
    def apply(
        self, payload: object, work: Callable[[Execute], object], *, segment: int | None = None
    ) -> Receipt: ...
    def map(
        self,
        compute: Callable[[Any], Any],
        items: Iterable[Any],
        work: Callable[[Execute, Any], object],
        **options: Any,
    ) -> list[Receipt]: ...
    def on_lost(self, function: Callable[[], object]) -> None: ...
    def advance(self) -> Verdict: ...
    def position(self) -> Position: ...
    def wait_held(self, timeout: float | None = None) -> None: ...
    def release(self) -> None: ...


class Fence(Protocol):
    """What the suite uses of a fence."""

    def hold(self, resource: str, **options: Any) -> AbstractContextManager[Lease]: ...
    def position(self, resource: str) -> Position: ...
    def accept_loss(self, error: pgfence.AcknowledgedSegmentsLostError) -> None: ...
    def reconcile(self, unknown: Any, *, grant: Any = None) -> Outcome: ...
    def apply(self, conn: Any, grant: Any, segment: int, payload: object) -> Verdict: ...
    def close(self) -> None: ...


class Driver(Protocol):
    """One driver under test."""

    name: str

    def connect(self, dsn: str, **options: Any) -> Fence: ...

    def transaction(self, dsn: str) -> AbstractContextManager[tuple[Any, Execute]]:
        """A caller's own connection in a transaction, and how to run a statement on it.

        Commits on leaving, and rolls back if the block raises.
        """
        ...


class _PsycopgLease:
    def __init__(self, lease: pgfence.Lease) -> None:
        self._lease = lease

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lease, name)

    def apply(
        self, payload: object, work: Callable[[Execute], object], *, segment: int | None = None
    ) -> Receipt:
        return self._lease.apply(payload, lambda tx: work(_execute_on(tx)), segment=segment)

    def map(
        self,
        compute: Callable[[Any], Any],
        items: Iterable[Any],
        work: Callable[[Execute, Any], object],
        **options: Any,
    ) -> list[Receipt]:
        return self._lease.map(
            compute, items, lambda tx, computed: work(_execute_on(tx), computed), **options
        )


class _PsycopgFence:
    def __init__(self, fence: pgfence.Fence) -> None:
        self._fence = fence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fence, name)

    @contextmanager
    def hold(self, resource: str, **options: Any) -> Iterator[Any]:
        with self._fence.hold(resource, **options) as lease:
            yield _PsycopgLease(lease)


class Psycopg:
    """psycopg 3, synchronous."""

    name = "psycopg"

    def connect(self, dsn: str, **options: Any) -> Any:
        return _PsycopgFence(pgfence.connect(dsn, **options))

    @contextmanager
    def transaction(self, dsn: str) -> Iterator[tuple[Any, Execute]]:
        # Another row factory than ours: a caller's connection is the caller's.
        with psycopg.connect(dsn, row_factory=dict_row) as conn:
            yield conn, _execute_on(conn)


def _execute_on(conn: psycopg.Connection[Any]) -> Execute:
    def execute(query: str, *parameters: object) -> object:
        return psycopg.RawCursor(conn).execute(query, parameters)

    return execute


DRIVERS: list[Driver] = [Psycopg()]
