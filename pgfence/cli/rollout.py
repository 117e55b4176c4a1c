"""pgfence rollout status, shadow, enforce"""

import time
from typing import Annotated, Any

import typer

from pgfence.audit import rollout as audit
from pgfence.cli.output import (
    AUDITOR,
    FOUND,
    OWNER,
    Connection,
    Dsn,
    Json,
    Reason,
    console,
    database,
    print_json,
    print_table,
    reported,
)

app = typer.Typer(
    no_args_is_help=True, help="Try pgfence out on what runs already, then enforce it."
)

_Prefix = Annotated[
    str, typer.Argument(help="The beginning of resource IDs; a whole one is a prefix too.")
]


@app.command()
@reported
def status(dsn: Dsn = "", as_json: Json = False) -> None:
    """Show what is in shadow and what is enforced for good, with the evidence in numbers.

    As a role in pgfence_auditor. The longest prefix decides; what has none is enforced.
    """
    with database(dsn, AUDITOR) as conn:
        found = audit.entries(conn)
    if as_json:
        print_json(found)
    elif not found:
        console().print("everything is enforced: no prefix was ever put in shadow")
    else:
        print_table(
            console(),
            ["prefix", "mode", "since", "by", "accepted", "would refuse", "not admitted"],
            [
                [
                    e.prefix, e.mode, e.enforced_since or e.shadow_since,
                    e.enforced_by or e.shadow_by, e.accepted, e.would_refuse, e.not_admitted,
                ]
                for e in found
            ],
        )  # fmt: skip
        console().print("what has no entry is enforced")


@app.command()
@reported
def shadow(prefix: _Prefix, reason: Reason = "", dsn: Dsn = "", as_json: Json = False) -> None:
    """Let through, and note, whatever would be refused under a prefix.

    As a member of pgfence_owner, before its tables are protected and before a lease is asked for.
    """
    with database(dsn, OWNER) as conn:
        row = conn.execute("select pgfence.shadow(%s, %s)", (prefix, reason)).fetchone()
        assert row is not None  # noqa: S101 - the function answers one row
    if as_json:
        print_json({"prefix": prefix, "shadow_since": row[0]})
    else:
        console().print(f"{_named(prefix)} is in shadow: nothing is refused, all is noted")


@app.command()
@reported
def enforce(
    prefix: _Prefix,
    reason: Reason = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for transactions that began before.")
    ] = 60.0,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Show what would have been refused under a prefix, ask, and refuse it from now on.

    As a member of pgfence_owner. There is no way back. What starts after it is enforced at once; a
    transaction that was let through before may still commit, and the command waits for it: exit
    code 1 if it is still open after --wait.
    """
    if as_json and not yes:
        raise typer.BadParameter("--json does not ask: give --yes as well", param_hint="--json")
    with database(dsn, OWNER) as conn:
        found = audit.evidence(conn, prefix)
        if not as_json:
            _show(found)
        if not yes:
            typer.confirm(f"Enforce {_named(prefix)}? There is no way back", abort=True)
        row = conn.execute("select pgfence.enforce(%s, %s)", (prefix, reason)).fetchone()
        assert row is not None  # noqa: S101 - the function answers one row
        ended = _wait(conn, wait)
    if as_json:
        print_json({"prefix": prefix, "enforced_since": row[0], "ended": ended, "evidence": found})
    else:
        console().print(f"{_named(prefix)} is enforced")
        if not ended:
            console().print(
                "transactions that began before are still open: see pg_stat_activity and"
                " pg_prepared_xacts"
            )
    if not ended:
        raise typer.Exit(FOUND)


def _wait(conn: Connection, seconds: float) -> bool:
    """Whether every transaction ended in time that may have been let through."""
    before = audit.next_transaction(conn)
    until = time.monotonic() + seconds
    while not (ended := audit.have_ended(conn, before)) and time.monotonic() < until:
        time.sleep(0.1)
    return ended


def _named(prefix: str) -> str:
    return prefix or "everything"


def _show(found: audit.Evidence) -> None:
    out, entry = console(), found.entry
    if entry is None:
        out.print(f"{_named(found.prefix)} has no entry: it is enforced as it is")
    elif entry.mode == "ENFORCED":
        out.print(f"{_named(entry.prefix)} is enforced since {_text(entry.enforced_since)}")
    else:
        out.print(
            f"{_named(entry.prefix)} is in shadow since {_text(entry.shadow_since)},"
            f" put there by {entry.shadow_by}"
        )
    out.print(f"accepted segments: {found.accepted}")
    out.print(f"would have been refused: {sum(f.occurrences for f in found.would_refuse)}")
    if found.would_refuse:
        print_table(
            out,
            ["verdict", "reason", "resource", "owner", "role", "table", "times", "first", "last"],
            [
                [
                    f.verdict, f.reason, f.resource, f.owner, f.session_role, f.table,
                    f.occurrences, f.first_at, f.last_at,
                ]
                for f in found.would_refuse
            ],
        )  # fmt: skip
    count = sum(f.occurrences for f in found.not_admitted)
    out.print(f"transactions that wrote protected rows without admission: {count}")
    if found.not_admitted:
        print_table(
            out,
            ["table", "role", "times", "first", "last", "last resource", "by prefix"],
            [
                [
                    f.table, f.session_role, f.occurrences, f.first_at, f.last_at, f.resource,
                    f.shadow_prefix,
                ]
                for f in found.not_admitted
            ],
        )  # fmt: skip


def _text(moment: Any) -> str:
    return str(moment.isoformat(" ", "seconds"))
