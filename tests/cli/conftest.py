"""The command line, run in this process."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from pgfence.cli import app
from tests.support import Database


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    exit_code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What it said in JSON."""
        return json.loads(self.out)


Pgfence = Callable[..., Said]


@contextmanager
def command_line(patch: pytest.MonkeyPatch) -> Iterator[Pgfence]:
    """Runs a command on a database as a role: pgfence("refusals", on=database, role="auditor").

    typed: what somebody types when it asks.
    """

    def run(
        *arguments: object, on: Database | None = None, role: str = "dba", typed: str = ""
    ) -> Said:
        patch.setenv("PGFENCE_DSN", on.dsn(role) if on else "")
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Said(result.exit_code, result.stdout, result.stderr)

    logger = logging.getLogger("pgfence")
    before = logger.handlers[:], logger.level
    asked_to_end = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield run
    # A command that goes on until a signal has taken it, and logs to what was its standard output.
    for number, handler in asked_to_end.items():
        signal.signal(number, handler)
    logger.handlers[:] = before[0]
    logger.setLevel(before[1])


@pytest.fixture
def pgfence(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pgfence]:
    with command_line(monkeypatch) as run:
        yield run
