"""The registry process: sign what the database decided, wake who waits, end who overstays.

Any number may run at once, with the same key or with several. None of them remembers anything, so
one that is killed loses nothing: what it had not recorded, the next one signs.
"""

import logging
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import IsolationLevel

from pgfence import coordinators, observe, tokens
from pgfence.clock import monotonic
from pgfence.drivers.psycopg import in_time, is_pooled, read_timestamps, time_limit
from pgfence.errors import NoWorkloadError, PgfenceError
from pgfence.queries import Connection, rows
from pgfence.registry.issuer import Issuer
from pgfence.registry.witness import Witness

_log = logging.getLogger("pgfence.registry")

#: Seconds between two looks for work that no notification announced, and for overdue sessions.
_LOOK = 0.5
#: Seconds that one look may take before its connection is given up.
_ANSWER = 10.0
_OVERDUE = "select pid, transaction, resource, overdue_ms from pgfence_registry.overdue_sessions()"
#: Those whose transaction was open at one look are seen at the next one.
_HANDED_OVER = """
    select resource, fence_token, handover_ms
      from pgfence.handovers(pg_catalog.clock_timestamp() - interval '1 minute')
"""
#: Seconds between two looks for handovers.
_HANDOVERS = 5.0
#: Seconds between attempts to connect: doubled each time, and drawn from the upper half.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


def run(
    dsn: str,
    key_file: Path,
    status_key_file: Path | None = None,
    lock_services: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT; for the main thread of a process.

    status_key_file: the key that signs status proofs, for databases elsewhere. lock_services: URLs
    of those at which it is to look who holds (R37).

    Raises `KeyFileError` for a key file that others may read, `InvalidArgumentError` and
    `LockServiceError` for a lock service that it could never ask, and what `serve` raises.
    """
    status_key = tokens.load_key(status_key_file) if status_key_file else None
    witness = Witness([coordinators.inspector(url) for url in lock_services])
    issuer = Issuer(tokens.load_key(key_file), status_key, witness)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        serve(dsn, issuer, stop)
    finally:
        witness.close()


def serve(dsn: str, issuer: Issuer, stop: threading.Event) -> None:
    """Sign until `stop` is set; connects again, with growing pauses, whenever it has to.

    Refuses to start, and to go on, when the key is no valid grant key of the bundle in force
    (`TrustRefusedError`), when that bundle does not follow from the one before
    (`BundleSplitError`), when the schema is not the one it was built for (`SchemaVersionError`),
    or when its role may not sign (`NoWorkloadError`). Raises psycopg's error for what is no DSN.
    """
    parameters = in_time(dsn)
    _event("started", kid=issuer.kid)
    pause = _FIRST_PAUSE
    overdue: set[tuple[int | None, str]] = set()
    while not stop.is_set():
        try:
            with _connected(parameters, issuer) as conn:
                for _ in _Shift(conn, issuer, overdue).work(stop):
                    # Not before: a role that may connect and not sign would be back at once.
                    pause = _FIRST_PAUSE
        except psycopg.Error as error:
            _event("disconnected", logging.WARNING, error=str(error), retry_in=round(pause, 3))
            stop.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(2 * pause, _LONGEST_PAUSE)
        except PgfenceError as error:
            _event("refused", logging.ERROR, error=str(error), next_step=error.next_step)
            raise
    _event("stopped")


@contextmanager
def _connected(parameters: dict[str, Any], issuer: Issuer) -> Iterator[Connection]:
    """A connection on which the issuer's key counts, and which hears of decided grants."""
    with psycopg.connect(autocommit=True, **parameters) as conn:
        conn.isolation_level = IsolationLevel.READ_COMMITTED
        with time_limit(conn, _ANSWER):
            read_timestamps(conn)
            pooled = is_pooled(conn)
            bundle, now_us = issuer.meet(conn)
            conn.execute("listen pgfence_sign")
            try:
                conn.execute("select from pgfence_registry.unsigned_grants() limit 0")
            except psycopg.errors.InsufficientPrivilege as error:
                raise NoWorkloadError(
                    f"role {conn.info.user} may not sign ({error.diag.message_primary}): "
                    f"grant pgfence_registry to {conn.info.user}",
                    hint=f"Run: grant pgfence_registry to {conn.info.user};",
                ) from error
        _event("connected", kid=issuer.kid, bundle=bundle.version, audience=bundle.audience)
        if pooled:
            _event(
                "a pooler is in between",
                logging.WARNING,
                next_step="connect directly: where it passes on no notification, a grant is signed "
                f"up to {_LOOK} s late",
            )
        if bundle.ends_soon(now_us):
            _event(
                "the trust bundle ends soon",
                logging.WARNING,
                expires_at=datetime.fromtimestamp(bundle.expires_at / 1_000_000, UTC).isoformat(),
                next_step="pgfence trust propose, sign and install",
            )
        yield conn


class _Shift:
    """What one connection does until it is lost, or the process is stopped."""

    def __init__(
        self, conn: Connection, issuer: Issuer, overdue: set[tuple[int | None, str]]
    ) -> None:
        self._conn = conn
        self._issuer = issuer
        #: Overdue sessions that the last look has found, on whatever connection: backend and
        #: transaction.
        self._overdue = overdue
        #: Handovers that were counted; None: those of before this connection are not.
        self._handed_over: set[tuple[Any, ...]] | None = None
        self._next_handovers = 0.0
        #: What was complained about, so that it is said once.
        self._said: set[tuple[Any, ...]] = set()

    def work(self, stop: threading.Event) -> Iterator[None]:
        """Sign at every notification, and look around in between; yields when that went through."""
        next_look = 0.0
        while not stop.is_set():
            try:
                with time_limit(self._conn, _ANSWER):
                    self._look_at_lock_services()
                    self._sign()
            finally:
                # Also where signing failed: what it waited for may be who is to be ended.
                if monotonic() >= next_look and not self._conn.closed:
                    with time_limit(self._conn, _ANSWER):
                        self._end_overdue()
                        self._note_handovers()
                    next_look = monotonic() + _LOOK
            yield
            for _ in self._conn.notifies(timeout=max(0.0, next_look - monotonic()), stop_after=1):
                pass

    def _look_at_lock_services(self) -> None:
        for seen in self._issuer.witness.record_tokens(self._conn):
            about: dict[str, Any] = {
                "resource": seen.resource,
                "request_id": seen.request_id,
                "coordinator": seen.coordinator,
            }
            if seen.problem:
                self._complain("not seen", coordinator=seen.coordinator, problem=seen.problem)
            elif seen.result == "RECORDED":
                _event("seen", **about, token=seen.token)
                # It answers: when it fails once more, that is news.
                over = ("not seen", seen.coordinator)
                self._said = {said for said in self._said if said[:2] != over}
            elif seen.result == "FENCE_REGRESSION":
                _event("FENCE_REGRESSION", logging.ERROR, **about, token=seen.token, mark=seen.mark)

    def _sign(self) -> None:
        for outcome in self._issuer.sign_pending(self._conn):
            grant = outcome.grant
            if outcome.problem:
                self._complain("not signed", lease=outcome.lease, problem=outcome.problem)
            elif grant and outcome.recorded:
                observe.signed()
                _event(
                    "signed",
                    resource=grant.resource,
                    owner=grant.owner,
                    lease=grant.lease,
                    fence_token=grant.fence_token,
                    request_id=grant.request_id,
                )

        for outcome in self._issuer.prove_pending(self._conn):
            if outcome.problem:
                self._complain("not proved", lease=outcome.lease, problem=outcome.problem)

    def _end_overdue(self) -> None:
        """End the sessions that two looks found holding up a waiter after their lease (R20)."""
        overdue = rows(self._conn, _OVERDUE)
        for pid, transaction, resource, overdue_ms in overdue:
            if (pid, transaction) not in self._overdue:
                continue
            if pid is None:
                self._complain(
                    "a prepared transaction keeps a resource from its owner",
                    transaction=transaction,
                    resource=resource,
                    next_step="find it in pg_prepared_xacts; commit or roll it back",
                )
                continue
            try:
                rows(self._conn, "select pg_catalog.pg_terminate_backend($1)", pid)
            except psycopg.errors.InsufficientPrivilege:
                self._complain(
                    "may not end an overdue session",
                    pid=pid,
                    transaction=transaction,
                    resource=resource,
                    next_step="grant pg_signal_backend to the registry's login role",
                )
            else:
                observe.ended_overdue_session()
                _event(
                    "ended an overdue session",
                    logging.WARNING,
                    pid=pid,
                    resource=resource,
                    overdue_ms=overdue_ms,
                )
        self._overdue.clear()
        self._overdue.update((pid, transaction) for pid, transaction, *_ in overdue)

    def _note_handovers(self) -> None:
        """Let metrics know how long resources took to change hands since the last look."""
        if not observe.counting() or monotonic() < self._next_handovers:
            return
        self._next_handovers = monotonic() + _HANDOVERS
        found = {tuple(key): ms / 1000 for *key, ms in rows(self._conn, _HANDED_OVER)}
        if self._handed_over is not None:
            observe.handovers(s for key, s in found.items() if key not in self._handed_over)
        self._handed_over = set(found)

    def _complain(self, name: str, **fields: Any) -> None:
        what = (name, *fields.values())
        if what not in self._said:
            self._said.add(what)
            _event(name, logging.ERROR, **fields)


def _event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    observe.event(_log, name, level, **fields)
