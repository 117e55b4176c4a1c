"""Registries that run beside a test: in a thread of it, or as a real process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgfence import coordinators
from pgfence.registry.issuer import Issuer
from pgfence.registry.serve import serve
from pgfence.registry.witness import Witness
from tests.support import Database, Keys, json_lines, wait_until

_PROCESS = """
import logging, os, pathlib
from pgfence.registry import serve
logging.basicConfig(format="%(message)s", level=logging.INFO)
serve.run(os.environ["PGFENCE_DSN"], pathlib.Path(os.environ["PGFENCE_KEY"]))
"""


@contextmanager
def registry(database: Database, keys: Keys, *lock_services: str) -> Iterator[None]:
    """Sign the database's grants while the block runs; lock_services: URLs, to look who holds."""
    stop = threading.Event()
    witness = Witness([coordinators.inspector(url) for url in lock_services])
    arguments = (database.dsn("registry"), Issuer(keys.grant, keys.status, witness), stop)
    thread = threading.Thread(target=serve, args=arguments, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        # Wakes it, so that it sees that it is to stop.
        database.connect().execute("notify pgfence_sign")
        thread.join()
        witness.close()


@dataclass(frozen=True)
class RegistryProcess:
    """A registry as a process of its own."""

    process: subprocess.Popen[bytes]
    log_file: Path

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one kind, so far."""
        return [event for event in json_lines(self.log_file) if event["event"] == name]

    def wait_for(self, name: str, *, count: int = 1) -> None:
        """Return when the process has logged so many events of the kind."""
        wait_until(lambda: len(self.events(name)) >= count, f"the registry says {name!r}")

    def kill(self) -> None:
        """kill -9"""
        self.process.kill()
        self.process.wait()


@contextmanager
def registry_process(dsn: str, key_file: Path, log_file: Path) -> Iterator[RegistryProcess]:
    """A registry process that has begun; killed at the end if it still runs."""
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROCESS],
            env=os.environ | {"PGFENCE_DSN": dsn, "PGFENCE_KEY": str(key_file)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield RegistryProcess(process, log_file)
    finally:
        process.kill()
        process.wait()
