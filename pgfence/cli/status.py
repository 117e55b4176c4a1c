"""pgfence status RESOURCE"""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from pgfence.audit import status as audit
from pgfence.cli.output import (
    FOUND,
    Dsn,
    Json,
    console,
    database,
    print_json,
    print_table,
    reported,
    resource_id,
    text,
)

_APP_OR_AUDITOR = "a role in pgfence_app or pgfence_auditor"


@reported
def status(
    resource: Annotated[
        str, typer.Argument(show_default=False, help="Which one.", callback=resource_id)
    ],
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Show how a resource stands: who holds it, where its receipts end, who waits.

    A role in pgfence_app sees where the receipts end and who wrote last, enough to take the work
    up; a role in pgfence_auditor sees everything. Exit code 1 says that the resource is paused.
    """
    with database(dsn, _APP_OR_AUDITOR) as conn:
        found = audit.status(conn, resource)
    if as_json:
        print_json(
            {"resource": found.resource, **asdict(found.position)}
            | {"audited": asdict(found.audited) if found.audited else None}
        )
    else:
        _print(console(), found)
    if found.position.paused:
        raise typer.Exit(FOUND)


def _print(out: Console, found: audit.Status) -> None:
    position, audited = found.position, found.audited
    lines = [("resource", found.resource)]
    if audited is not None:
        lines += [("held by", _holder(audited.holder)), ("mode", audited.mode.lower())]
    if position.paused:
        because = audited.paused_because if audited else "an auditor sees why"
        lines.append(("paused", f"{because}; `pgfence resume {found.resource}`"))
    lines.append(("highest fence", str(position.highest_fence or "none has written yet")))
    if position.operation_root:
        lines += [
            ("written by", str(position.owner)),
            ("operation root", position.operation_root),
            ("takes up", position.continues_root or "no other operation"),
            ("last segment", f"{position.last_segment}, {position.total_segments} by all owners"),
        ]
    if audited is not None and audited.last_receipt:
        receipt = audited.last_receipt
        by = f"{receipt.session_role}, {text(receipt.accepted_at)}"
        lines.append(("last receipt", f"{receipt.digest[:16]} of {by}"))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        out.print(f"{name:<{width}}  {value}", soft_wrap=True)
    if audited is None:
        out.print("who holds it, who waits and what was refused is for a role in pgfence_auditor")
        return
    if audited.waiters:
        out.print("waiting, the first in the queue first")
        print_table(
            out,
            ["workload", "operation", "request", "since"],
            [[w.workload, w.operation_class, w.request_id, w.asked_at] for w in audited.waiters],
        )
    if audited.held_up_by:
        out.print("they wait for the transaction of")
        print_table(
            out,
            ["session", "role", "since"],
            [["prepared" if s.pid is None else s.pid, s.role, s.since] for s in audited.held_up_by],
        )
    if audited.refusals:
        out.print("refused last")
        print_table(
            out,
            ["verdict", "reason", "fence", "owner", "role", "times", "last", "in shadow"],
            [
                [
                    r.verdict, r.reason, r.fence_token, r.owner, r.session_role, r.occurrences,
                    r.last_at, r.in_shadow,
                ]
                for r in audited.refusals
            ],
        )  # fmt: skip


def _holder(holder: audit.Holder | None) -> str:
    if holder is None:
        return "nobody"
    until = f"until {text(holder.lease_ends_at)} unless renewed"
    signed = "" if holder.signed else ", not signed yet: is a registry process running?"
    return f"{holder.owner}, fence {holder.fence_token}, {until}{signed}"
