"""pgfence receipts RESOURCE, and verify [RESOURCE] or prune [RESOURCE] in its place"""

from datetime import timedelta
from typing import Annotated

import typer
from rich.progress import Progress

from pgfence.audit import receipts as audit
from pgfence.cli.output import (
    AUDITOR,
    FOUND,
    OWNER,
    Connection,
    Dsn,
    Json,
    console,
    database,
    print_json,
    print_table,
    reported,
    resource_id,
)

#: Receipts in one transaction of a pruning: some tenths of a second.
_BATCH = 10_000
_OF_PRUNE = "Of prune: "


@reported
def receipts(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RESOURCE | verify [RESOURCE] | prune [RESOURCE]", show_default=False
        ),
    ],
    older_than: Annotated[
        int | None,
        typer.Option(
            help=_OF_PRUNE + "days that receipts are kept.", metavar="DAYS", min=1, max=36500
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help=_OF_PRUNE + "show what would go, change nothing.")
    ] = False,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Show the receipts of a resource; verify the chain, or prune old receipts: of one, or of all.

    As a role in pgfence_auditor; to verify one resource pgfence_app will do, to prune it takes a
    member of pgfence_owner. Exit code 1 says that a chain is broken.
    """
    pruning = words[0] == "prune"
    if (older_than is not None) is not pruning or (dry_run and not pruning):
        raise typer.BadParameter(
            "prune needs --older-than DAYS; it and --dry-run are prune's alone"
        )
    match words:
        case ["verify"]:
            _verify(dsn, None, as_json)
        case ["verify", resource]:
            _verify(dsn, resource_id(resource), as_json)
        case ["prune", *resources] if older_than is not None and len(resources) < 2:
            resource_or_all = resource_id(resources[0]) if resources else None
            _prune(dsn, resource_or_all, timedelta(days=older_than), dry_run, as_json)
        case [resource]:
            _show(dsn, resource_id(resource), as_json)
        case _:
            raise typer.BadParameter("give a resource, or: verify [RESOURCE], or: prune [RESOURCE]")


def _show(dsn: str, resource: str, as_json: bool) -> None:
    with database(dsn, AUDITOR) as conn:
        found = audit.receipts_of(conn, resource)
        pruned = audit.pruned_of(conn, resource)
    if as_json:
        print_json(found)
        return
    out = console()
    if pruned:
        out.print(f"{pruned} receipts were pruned, from the beginning of the chain on")
    if not found:
        more = "no more" if pruned else "no"
        out.print(f"{resource} has {more} receipts", soft_wrap=True)
        return
    print_table(
        out,
        ["fence", "segment", "owner", "role", "accepted at", "payload", "receipt"],
        [
            [
                r.fence_token, r.segment_seq, r.owner, r.session_role, r.accepted_at,
                r.payload_digest[:16], r.digest[:16],
            ]
            for r in found
        ],
    )  # fmt: skip


def _verify(dsn: str, resource: str | None, as_json: bool) -> None:
    with database(dsn, AUDITOR) as conn:
        resources = audit.resources(conn) if resource is None else [resource]
        chains = [audit.verify(conn, each) for each in resources]
    broken = [chain for chain in chains if not chain.ok]
    if as_json:
        print_json(chains)
    elif resource is not None and not (broken or chains[0].receipts or chains[0].pruned):
        console().print(f"{resource} has no receipts", soft_wrap=True)
    else:
        out = console()
        for chain in broken:
            at = f" at {chain.where}" if chain.where else ": "
            out.print(f"{chain.resource}: BROKEN{at}{chain.problem}", soft_wrap=True)
        whole = [chain for chain in chains if chain.ok]
        count = sum(chain.receipts for chain in whole)
        pruned = sum(chain.pruned for chain in whole)
        besides = f", {pruned} were pruned" if pruned else ""
        out.print(f"{len(whole)} of {len(chains)} chains are whole, {count} receipts{besides}")
    if broken:
        raise typer.Exit(FOUND)


def _prune(
    dsn: str, resource: str | None, retention: timedelta, dry_run: bool, as_json: bool
) -> None:
    needs = AUDITOR if dry_run else OWNER
    with database(dsn, needs) as conn:
        found = audit.prunable(conn, retention, resource)
        stretches = [] if dry_run else _prune_all(conn, retention, found)
    broken = [stretch for stretch in stretches if stretch.problem]
    if as_json:
        print_json(found if dry_run else stretches)
        return _exit(broken)
    out = console()
    if dry_run:
        if found:
            print_table(
                out,
                ["resource", "receipts", "up to fence", "segment", "bytes"],
                [[p.resource, p.receipts, p.to_fence, p.to_segment, p.bytes] for p in found],
            )
        count, verb = sum(p.receipts for p in found), "would be"
    else:
        for stretch in broken:
            out.print(f"{stretch.resource}: {stretch.problem}", soft_wrap=True)
        count, verb = sum(s.receipts for s in stretches), "were"
    of = len({p.resource for p in found} - {s.resource for s in broken})
    out.print(f"{count} receipts of {of} resources {verb} pruned")
    return _exit(broken)


def _prune_all(
    conn: Connection, retention: timedelta, found: list[audit.Prunable]
) -> list[audit.Pruned]:
    """Prune what was found, in short transactions; a terminal shows how far it has come."""
    stretches = []
    out = console(stderr=True)
    with Progress(console=out, disable=not out.is_terminal, transient=True) as progress:
        task = progress.add_task("pruning", total=sum(p.receipts for p in found))
        for each in found:
            for stretch in audit.prune(conn, retention, each.resource, _BATCH):
                stretches.append(stretch)
                progress.advance(task, stretch.receipts)
    return stretches


def _exit(broken: list[audit.Pruned]) -> None:
    if broken:
        raise typer.Exit(FOUND)
