"""pgfence registry serve, switch, resume, elsewhere, here, place"""

from pathlib import Path
from typing import Annotated

import typer

from pgfence import observe
from pgfence.cli.output import (
    OWNER,
    Dsn,
    Json,
    Metrics,
    Reason,
    console,
    database,
    log_to_stdout,
    print_json,
    reported,
    serve_metrics,
)
from pgfence.cli.placement import elsewhere, here, place
from pgfence.cli.resume import resume
from pgfence.coordinators import capabilities
from pgfence.registry import serve as process

_ABOUT = "The process that signs grants, and the coordinator that says who may hold."
app = typer.Typer(no_args_is_help=True, help=_ABOUT)


@app.command()
@reported
def serve(
    key: Annotated[Path, typer.Option(help="The grant key; a file that others may not read.")],
    status_key: Annotated[
        Path | None,
        typer.Option(help="The status key, where databases elsewhere use this registry."),
    ] = None,
    coordinator: Annotated[
        list[str] | None,
        typer.Option(
            envvar="PGFENCE_COORDINATOR",
            show_default=False,
            help="URL of a lock service at which to look who holds, such as "
            "etcd://host:2379. May be given several times.",
        ),
    ] = None,
    metrics: Metrics = "",
    handover_budget: Annotated[
        float, typer.Option(help="Of --metrics: seconds that a resource may take to change hands.")
    ] = observe.HANDOVER_BUDGET,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Sign grants, wake workers, end overdue sessions; until SIGTERM or Ctrl-C.

    As a role in pgfence_registry, directly and not through a pooler. Any number may run at once.
    The log goes to standard output.
    """
    log_to_stdout(as_json=as_json)
    serve_metrics(metrics, handover_budget)
    process.run(dsn, key, status_key, coordinator or [])


app.command()(resume)
app.command()(elsewhere)
app.command()(here)
app.command()(place)


@app.command()
@reported
def switch(
    to: Annotated[
        str, typer.Option(show_default=False, help="postgres, etcd, zookeeper or redis.")
    ],
    registry_mints: Annotated[
        bool,
        typer.Option(
            "--registry-mints",
            help="It only chooses a candidate; for one whose tokens do not rise.",
        ),
    ] = False,
    reason: Reason = "",
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Let another coordinator say who may hold; fence tokens go on rising.

    As a member of pgfence_owner. Leases that are held go on to their ends. Start registry processes
    with --coordinator for the new one before, and workers with it after.
    """
    rising = capabilities(to).rising_tokens
    with database(dsn, OWNER) as conn:
        row = conn.execute(
            "select term, coordinator, coordinator_before, above"
            " from pgfence_registry.switch_coordinator(%s, %s, %s, %s)",
            (to, rising, registry_mints, reason),
        ).fetchone()
    assert row is not None  # noqa: S101 - the function answers one row
    term, coordinator, before, above = row
    if as_json:
        print_json({"term": term, "coordinator": coordinator, "before": before, "above": above})
        return
    out = console()
    out.print(f"{coordinator} says who may hold; before it was {before}")
    out.print(f"every fence token that was issued so far lies at or below {above}")
