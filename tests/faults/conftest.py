"""Real processes against a guarded table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pgfence import tokens
from tests.support import Keys

RESOURCE = "invoice-batch/2026-07-19"


@pytest.fixture
def key_file(keys: Keys, tmp_path: Path) -> Path:
    path = tmp_path / "grant.key"
    tokens.write_key(path, keys.grant)
    return path


@dataclass(frozen=True)
class WorkerProcess:
    """tests.faults.worker as a process."""

    process: subprocess.Popen[str]

    def hear(self, event: str) -> dict[str, Any]:
        """The next thing it says, which must be `event`."""
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert said["event"] == event, said
        return said

    def go_on(self, how: str = "") -> None:
        """Let it leave its wait, now or when it is continued. how: see tests.faults.worker."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{how}\n")
        self.process.stdin.flush()


@contextmanager
def worker_process(
    dsn: str,
    *arguments: object,
    heedless: bool = False,
    module: str = "tests.faults.worker",
) -> Iterator[WorkerProcess]:
    """A worker that connects; killed at the end if it still runs. Arguments: see the module."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=os.environ | {"PGFENCE_DSN": dsn} | ({"HEEDLESS": "1"} if heedless else {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield WorkerProcess(process)
        finally:
            process.kill()
