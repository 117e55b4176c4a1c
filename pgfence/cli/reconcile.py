"""pgfence reconcile, and pgfence answer"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from pgfence import reconcile as process
from pgfence.cli.output import (
    FOUND,
    Connection,
    Dsn,
    Json,
    Metrics,
    check_version,
    console,
    database,
    log_to_stdout,
    print_json,
    print_table,
    reported,
    rights_told,
    serve_metrics,
)
from pgfence.drivers.psycopg import time_limit
from pgfence.model.canonical import MAX_INTEGER

_RIGHTS = "a role of the workload, or a member of pgfence_owner; --look: also in pgfence_auditor"


@reported
def reconcile(
    watch: Annotated[bool, typer.Option("--watch", help="Go on until SIGTERM or Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option(help="Of --watch: seconds between rounds.", min=0.1, max=86400)
    ] = 10,
    handler: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Who answers what cannot be proven."),
    ] = None,
    look: Annotated[bool, typer.Option("--look", help="Settle nothing, only show.")] = False,
    metrics: Metrics = "",
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Settle what is unknown: commits that were not answered, operations left half-way.

    As a role of a workload its own, as a member of pgfence_owner everything. What cannot be proven
    goes to the handlers, what they leave is shown with who must decide and why. Exit code 1 says
    that something is older than 15 minutes.
    """
    handlers = process.load_handlers(handler or [])
    if watch:
        log_to_stdout(as_json=as_json)
        serve_metrics(metrics)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        with _connected(dsn, look) as conn:  # once, for what is wrong from the start
            if look:
                process.look(conn)
        process.watch(dsn, handlers, stop, every, only=look)
        return
    if metrics:
        raise typer.BadParameter("only with --watch", param_hint="--metrics")
    with _connected(dsn, look) as conn:
        done = process.Round([], process.look(conn)) if look else process.reconcile(conn, handlers)
    if as_json:
        settled = [
            {"outcome": one.outcome, "by": one.by, "evidence": one.evidence, "unknown": one.unknown}
            for one in done.settled
        ]
        print_json({"settled": settled, "remaining": done.remaining, "alarm": bool(done.overdue)})
    else:
        _show(done)
    if done.overdue:
        raise typer.Exit(FOUND)


@contextmanager
def _connected(dsn: str, look: bool) -> Iterator[Connection]:
    """A connection for rounds to our version of pgfence, as a role that may do what is asked."""
    with process.connected(dsn) as conn, rights_told(conn, _RIGHTS):
        with time_limit(conn, process.ANSWER):
            check_version(conn)
            if not look:
                process.check_rights(conn)
        yield conn


def _show(done: process.Round) -> None:
    out = console()
    for one in done.settled:
        by = f" (says {one.by}: {one.evidence})" if one.by else ""
        out.print(
            f"settled: {one.outcome}: segment {one.unknown.segment_seq} of {one.unknown.resource} "
            f"under fence {one.unknown.fence_token}{by}",
            soft_wrap=True,
        )
    if not done.remaining:
        out.print("nothing is unknown")
        return
    print_table(
        out,
        ["resource", "fence", "segment", "since", "why", "who must decide", "said"],
        [
            [
                u.resource, u.fence_token, u.segment_seq, u.since,
                f"{u.reason or u.outcome}: {u.explanation}", u.ask,
                u.answer and f"{u.answer}: {u.evidence}",
            ]
            for u in done.remaining
        ],
    )  # fmt: skip
    for unknown in done.overdue:
        out.print(
            f"ALARM: unknown for {unknown.age_ms // 60_000} minutes: segment {unknown.segment_seq} "
            f"of {unknown.resource}, operation {unknown.operation_root}",
            soft_wrap=True,
        )


@reported
def answer(
    resource: Annotated[str, typer.Argument(help="As `pgfence reconcile --json` shows it.")],
    operation_root: Annotated[str, typer.Argument(help="sha256: and 64 digits.")],
    segment: Annotated[int, typer.Argument(min=1, max=MAX_INTEGER)],
    says: Annotated[process.Says, typer.Argument(help="What became of it.")],
    evidence: Annotated[str, typer.Option(help="What shows it; kept for whoever asks later.")],
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Say what became of something that `pgfence reconcile` cannot settle.

    As a role of the workload, or a member of pgfence_owner. Refused against a receipt or a proof,
    and while the lease may still be held; after NOT_APPLIED no commit of it can come any more.
    """
    with database(dsn, "a role of the workload, or a member of pgfence_owner") as conn:
        outcome = process.answer(
            conn, (resource, operation_root, segment), process.Answer(says, evidence)
        )
    if as_json:
        print_json(
            {
                "resource": resource,
                "operation_root": operation_root,
                "segment_seq": segment,
                "answer": says,
                "outcome": outcome.outcome,
                "reason": outcome.reason,
            }
        )
        return
    console().print(f"noted: {says}: segment {segment} of {resource}", soft_wrap=True)
