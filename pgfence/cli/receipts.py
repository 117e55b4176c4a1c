"""pgfence receipts RESOURCE; pgfence receipts verify [RESOURCE]"""

from typing import Annotated

import typer

from pgfence.audit import receipts as audit
from pgfence.cli.output import (
    FOUND,
    Dsn,
    Json,
    console,
    database,
    print_json,
    print_table,
    reported,
)


@reported
def receipts(
    words: Annotated[
        list[str],
        typer.Argument(metavar="RESOURCE | verify [RESOURCE]", show_default=False),
    ],
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Show the receipts of a resource, or verify the chain: of one resource, or of all.

    As a role in pgfence_auditor; to verify one resource pgfence_app will do. Exit code 1 says that
    a chain is broken.
    """
    match words:
        case ["verify"]:
            _verify(dsn, None, as_json)
        case ["verify", resource]:
            _verify(dsn, resource, as_json)
        case [resource]:
            _show(dsn, resource, as_json)
        case _:
            raise typer.BadParameter("give a resource, or: verify [RESOURCE]")


def _show(dsn: str, resource: str, as_json: bool) -> None:
    with database(dsn, "a role in pgfence_auditor") as conn:
        found = audit.receipts_of(conn, resource)
    if as_json:
        print_json(found)
        return
    out = console()
    if not found:
        out.print(f"{resource} has no receipts", soft_wrap=True)
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
    with database(dsn, "a role in pgfence_auditor") as conn:
        resources = audit.resources(conn) if resource is None else [resource]
        chains = [audit.verify(conn, each) for each in resources]
    broken = [chain for chain in chains if not chain.ok]
    if as_json:
        print_json(chains)
    else:
        out = console()
        for chain in broken:
            where = f"fence {chain.first_bad_fence}, segment {chain.first_bad_segment}"
            out.print(f"{chain.resource}: BROKEN at {where}: {chain.problem}", soft_wrap=True)
        whole = [chain for chain in chains if chain.ok]
        count = sum(chain.receipts for chain in whole)
        out.print(f"{len(whole)} of {len(chains)} chains are whole, {count} receipts")
    if broken:
        raise typer.Exit(FOUND)
