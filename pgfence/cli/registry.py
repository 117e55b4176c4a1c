"""pgfence registry serve"""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from pgfence.cli.output import Dsn, Json, reported
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
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Sign grants, wake workers, end overdue sessions; until SIGTERM or Ctrl-C.

    As a role in pgfence_registry, directly and not through a pooler. Any number may run at once.
    The log goes to standard output.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s") if as_json else _ForPeople())
    logger = logging.getLogger("pgfence")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    process.run(dsn, key, status_key)


class _ForPeople(logging.Formatter):
    """2026-07-19T10:00:00.000+00:00 signed resource=invoice-batch/2026-07-19 fence_token=7"""

    def format(self, record: logging.LogRecord) -> str:
        fields = json.loads(record.getMessage())
        head = f"{fields.pop('time')} {fields.pop('event')}"
        return " ".join([head, *(f"{name}={value}" for name, value in fields.items())])
