"""Settles what is unknown: by proof where the database has one, else by whoever knows the domain.

A round reads `pgfence.unknown_outcomes()` and, for each commit that was not answered, calls
`pgfence.reconcile()`. What that cannot settle, and each operation whose lease ended half-way, goes
to the domain's handlers: functions of this process that get an `Unknown` and answer what became of
it, with evidence. They run with the rights of this process, outside any transaction, and are given
no connection; their answer is recorded with their name and the login role. What then remains is for
a person, and `Unknown.ask` says for which. After `ALARM` seconds it is an alarm (R45).

On a role of a workload a round sees that workload's own, on a member of pgfence_owner everything.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row

from pgfence import errors, observe
from pgfence.drivers.psycopg import in_time, read_timestamps, time_limit
from pgfence.model.outcome import Outcome

Connection = psycopg.Connection[Any]
#: Resource, operation root, number.
_Segment = tuple[str, str, int]

#: Seconds within which everything is to be settled or handed over (R45).
ALARM = 900.0
#: Seconds that a round waits for a transaction that is open on a resource.
_LOCK = 5.0
#: Seconds that the database gets to answer a question before its connection is given up.
ANSWER = 30.0
#: Seconds that a handler gets to answer.
_HANDLER = 60.0
#: Installed packages offer handlers as entry points of this group.
HANDLERS = "pgfence.handlers"

_log = logging.getLogger("pgfence.reconcile")
_LOOK = "select * from pgfence.unknown_outcomes()"
_MAY_SETTLE = """
    select pg_catalog.has_function_privilege(
        'pgfence.reconcile(text, text, bigint, text, text, text)', 'execute')
"""
_RECONCILE = "select * from pgfence.reconcile(%s, %s, %s)"
_ANSWER = "select * from pgfence.answer_unknown(%s, %s, %s, %s, %s, %s)"


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something of which nobody knows what became of it, as `pgfence.unknown_outcomes()` shows it.

    kind: UNANSWERED_COMMIT: segment `segment_seq`, with the payload whose SHA-256 is
    `payload_digest`, may or may not stand. EXPIRED_LEASE: the segments before `segment_seq` stand,
    the lease ended without release, and nobody has taken the operation up.
    reason, explanation, ask: why it is unknown, and who must decide. answer, evidence, answered_by:
    what a handler said that hands it to a person. age_ms: milliseconds since `since`.
    """

    kind: str
    since: datetime
    age_ms: int
    answer: str | None
    evidence: str | None
    answered_by: str | None
    outcome: str
    reason: str | None
    explanation: str
    ask: str | None
    resource: str
    operation_root: str
    segment_seq: int
    fence_token: int
    owner: str
    payload_digest: str | None

    @property
    def proven(self) -> bool:
        """Whether the receipts and fences say already what became of it."""
        return self.outcome in ("ACCEPTED", "PROVEN_NOT_APPLIED")

    @property
    def overdue(self) -> bool:
        """Whether it is older than R45 allows."""
        return self.age_ms > ALARM * 1000


class Says(StrEnum):
    """What a handler or a person may say of an `Unknown`.

    Of an operation that was left half-way APPLIED means that nothing of it is missing, NOT_APPLIED
    that what follows its last segment is still to be done.
    """

    APPLIED = "APPLIED"
    NOT_APPLIED = "NOT_APPLIED"
    ASK_A_PERSON = "ASK_A_PERSON"


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody says, and what shows it: 1 to 4,000 characters, kept for whoever asks later."""

    says: Says
    evidence: str


#: Answers, or None for what is not its own. What it raises is logged, and settles nothing; and so
#: is that it has not answered in time.
Handle = Callable[[Unknown], Answer | None]


class Handler:
    """A domain's handler and its name, which is recorded with its answers.

    It is asked in a thread, so that one that hangs keeps neither proofs nor the alarm back.
    """

    def __init__(self, name: str, handle: Handle) -> None:
        self.name = name
        self._handle = handle
        #: Where it was asked last, and may be still.
        self._asking: threading.Thread | None = None

    def ask(self, unknown: Unknown, within: float) -> Answer | None:
        """Its answer. Raises what it raises, and TimeoutError after so many seconds; the answer
        counts no more then, and it is asked again when it has come.
        """
        if self._asking is not None and self._asking.is_alive():
            raise TimeoutError("it has not answered what it was asked before")
        answers: Future[Answer | None] = Future()

        def handle() -> None:
            try:
                answers.set_result(self._handle(unknown))
            except BaseException as error:
                answers.set_exception(error)

        self._asking = threading.Thread(target=handle, name=f"pgfence {self.name}", daemon=True)
        self._asking.start()
        try:
            return answers.result(within)
        except TimeoutError:
            if answers.done():  # it is the handler's own
                raise
            raise TimeoutError(f"no answer within {within:g} seconds") from None


def load_handlers(names: Iterable[str] = ()) -> list[Handler]:
    """The handlers `module:function`, and then those that installed packages offer.

    Raises `InvalidArgumentError` where there is none of that name.
    """
    named = [Handler(name, _load(name)) for name in names]
    offered = [Handler(point.value, point.load()) for point in entry_points(group=HANDLERS)]
    return named + offered


def _load(name: str) -> Handle:
    module, _, function = name.partition(":")
    try:
        handle = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise errors.InvalidArgumentError(
            f"there is no handler {name}: {error}",
            hint="Name it as module:function; the module must be on PYTHONPATH.",
        ) from error
    if not callable(handle):
        raise errors.InvalidArgumentError(f"handler {name} is not a function")
    return handle  # type: ignore[no-any-return]


class Settled(NamedTuple):
    """What a round settled: by a proof (ACCEPTED, PROVEN_NOT_APPLIED), or by a handler's answer."""

    unknown: Unknown
    outcome: str
    by: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Round:
    """What one round came to: what it settled, and what remains, the oldest first."""

    settled: list[Settled]
    remaining: list[Unknown]

    @property
    def overdue(self) -> list[Unknown]:
        """What raises the alarm."""
        return [unknown for unknown in self.remaining if unknown.overdue]


def look(conn: Connection) -> list[Unknown]:
    """What is unknown now, the oldest first; also as a role in pgfence_auditor."""
    found = [unknown for unknown in _found(conn) if not unknown.proven]
    observe.unknown_now(found)
    return found


def _found(conn: Connection) -> list[Unknown]:
    with conn.cursor(row_factory=class_row(Unknown)) as cursor, time_limit(conn, ANSWER):
        return cursor.execute(_LOOK).fetchall()


def check_rights(conn: Connection) -> None:
    """Return if this login role may settle something. Raises `NoWorkloadError`."""
    if conn.execute(_MAY_SETTLE).fetchone() != (True,):
        raise errors.NoWorkloadError(
            f"role {conn.info.user} may look, and settle nothing",
            hint="Log in as a role of the workload or as a member of pgfence_owner, or say --look.",
        )


def reconcile(conn: Connection, handlers: Iterable[Handler] = ()) -> Round:
    """One round. conn: in autocommit, so that each decision is a transaction of its own."""
    handlers = list(handlers)
    settled: list[Settled] = []
    remaining: list[Unknown] = []
    for unknown in _found(conn):
        result = _prove(conn, unknown)
        if isinstance(result, Unknown):
            result = _ask(conn, result, handlers)
        if isinstance(result, Unknown):
            remaining.append(result)
        else:
            observe.reconciled(result.outcome)
            settled.append(result)
    observe.unknown_now(remaining)
    return Round(settled, remaining)


def _prove(conn: Connection, unknown: Unknown) -> Unknown | Settled:
    """Settle by what the database can prove; else the unknown, with why it is that now."""
    if unknown.kind == "EXPIRED_LEASE":
        return unknown
    try:
        with time_limit(conn, ANSWER):
            row = conn.execute(_RECONCILE, _coordinates(unknown)).fetchone()
    except psycopg.errors.LockNotAvailable:
        return replace(
            unknown,
            reason="LOCKED",
            explanation=f"a transaction on {unknown.resource} is open and does not end",
            ask="the DBA: see pg_stat_activity and pg_prepared_xacts",
        )
    assert row is not None  # noqa: S101 - the function answers one row
    outcome = Outcome.from_row(row)
    if outcome.outcome in ("ACCEPTED", "PROVEN_NOT_APPLIED"):
        return Settled(unknown, outcome.outcome, "", outcome.explanation)
    return replace(
        unknown,
        outcome=outcome.outcome,
        reason=outcome.reason,
        explanation=outcome.explanation,
        ask=outcome.ask,
    )


def _ask(conn: Connection, unknown: Unknown, handlers: list[Handler]) -> Unknown | Settled:
    """Let the domain's handlers answer, the first that does. Whose lease is held answers itself."""
    if unknown.reason in ("LEASE_HELD", "LOCKED") or unknown.answer is not None:
        return unknown
    for handler in handlers:
        answer = _answer_of(handler, unknown)
        if answer is None:
            continue
        try:
            with time_limit(conn, ANSWER):
                _record(conn, _coordinates(unknown), answer, handler.name)
        except (errors.PgfenceError, psycopg.errors.LockNotAvailable) as refused:
            # Things have moved on since, and the next round knows better; or it is no answer.
            said = f"the answer of {handler.name} was not taken: {refused}"
            return replace(unknown, explanation=f"{unknown.explanation}; {said}")
        if answer.says is Says.ASK_A_PERSON:
            return replace(unknown, answer=str(answer.says), evidence=answer.evidence)
        return Settled(unknown, str(answer.says), handler.name, answer.evidence)
    return unknown


def _answer_of(handler: Handler, unknown: Unknown) -> Answer | None:
    try:
        answer = handler.ask(unknown, _HANDLER)
        return answer if answer is None else Answer(Says(answer.says), str(answer.evidence))
    except (Exception, SystemExit) as error:
        observe.event(
            _log, "handler failed", logging.ERROR, handler=handler.name, error=repr(error),
            **_fields(unknown),
        )  # fmt: skip
        return None


def answer(conn: Connection, segment: _Segment, says: Answer) -> Outcome:
    """Record what a person says became of a segment: resource, operation root, number.

    Raises `DecisionRefusedError` for an answer against a receipt, a proof or an earlier answer,
    and while the lease may still be held; `InvalidArgumentError`, `NotOwnerError`.
    """
    return _record(conn, segment, says, "")


def _record(conn: Connection, segment: _Segment, answer: Answer, handler: str) -> Outcome:
    with errors.translated_errors():
        row = conn.execute(_ANSWER, (*segment, answer.says, answer.evidence, handler)).fetchone()
    assert row is not None  # noqa: S101 - the function answers one row
    return Outcome.from_row(row)


def _coordinates(unknown: Unknown) -> _Segment:
    return unknown.resource, unknown.operation_root, unknown.segment_seq


def watch(
    dsn: str, handlers: Iterable[Handler], stop: threading.Event, every: float, *, only: bool
) -> None:
    """A round every so many seconds until `stop` is set; connects again whenever it has to.

    only: look, and settle nothing. What remains is logged when it comes up and when its reason
    changes, and once more, as an error, when it is overdue.
    """
    handlers = list(handlers)
    said: dict[_Segment, str] = {}
    while not stop.is_set():
        try:
            with connected(dsn) as conn:
                while not stop.is_set():
                    said = _log_round(
                        Round([], look(conn)) if only else reconcile(conn, handlers), said
                    )
                    stop.wait(every)
        except psycopg.OperationalError as error:
            observe.event(_log, "disconnected", logging.WARNING, error=str(error), retry_in=every)
            stop.wait(every)
    observe.event(_log, "stopped")


@contextmanager
def connected(dsn: str) -> Iterator[Connection]:
    """A connection for rounds: what waits for a lock too long is left for the next one.

    Of a server that stays silent a round raises psycopg's OperationalError, after `ANSWER` seconds.
    """
    parameters = in_time(dsn) | {"application_name": "pgfence reconcile"}
    with psycopg.connect(autocommit=True, **parameters) as conn:
        with time_limit(conn, ANSWER):
            read_timestamps(conn)
            conn.execute(f"set lock_timeout = {round(_LOCK * 1000)}")
        yield conn


def _log_round(done: Round, said: Mapping[_Segment, str]) -> dict[_Segment, str]:
    for one in done.settled:
        observe.event(_log, "settled", **_fields(one.unknown), outcome=one.outcome, by=one.by,
                      evidence=one.evidence)  # fmt: skip
    now = {}
    for unknown in done.remaining:
        state = f"{unknown.reason} {unknown.answer} {unknown.overdue}"
        now[_coordinates(unknown)] = state
        if said.get(_coordinates(unknown)) != state:
            observe.event(
                _log,
                "overdue" if unknown.overdue else "unknown",
                logging.ERROR if unknown.overdue else logging.WARNING,
                **_fields(unknown),
                reason=unknown.reason or unknown.outcome,
                ask=unknown.ask,
                age_ms=unknown.age_ms,
            )
    return now


def _fields(unknown: Unknown) -> dict[str, Any]:
    return {
        "kind": unknown.kind,
        "resource": unknown.resource,
        "fence_token": unknown.fence_token,
        "segment_seq": unknown.segment_seq,
        "owner": unknown.owner,
    }
