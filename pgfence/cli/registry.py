"""pgfence registry serve"""

from pathlib import Path
from typing import Annotated

import typer

from pgfence import observe
from pgfence.cli.output import Dsn, Json, Metrics, log_to_stdout, reported, serve_metrics
from pgfence.registry import serve as process

app = typer.Typer(no_args_is_help=True, help="The process that signs grants.")


@app.callback()
def _group() -> None:
    """The process that signs grants."""


@app.command()
@reported
def serve(
    key: Annotated[Path, typer.Option(help="The grant key; a file that others may not read.")],
    status_key: Annotated[
        Path | None,
        typer.Option(help="The status key, where databases elsewhere use this registry."),
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
    process.run(dsn, key, status_key)
