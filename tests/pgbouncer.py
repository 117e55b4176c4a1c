"""pgbouncer in transaction mode between the workers of a test and its server.

The worst case on purpose: each role has a few server connections for each database, and every
transaction gets another one of them than the transaction before, with whatever was left there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo

from tests.support import (
    LOGIN_ROLES,
    PATIENCE,
    ROLE_PASSWORD,
    Database,
    TestServer,
    free_ports,
    listens,
    unavailable,
    wait_until,
)

#: Who comes through the pooler; the registry process and administrators connect directly.
POOLED_ROLES = ("worker_a", "worker_b", "outsider")
#: Server connections that the clients of one role share.
SHARED = 3

_INI = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {auth_file}
pool_mode = transaction
server_round_robin = 1
default_pool_size = 20
max_client_conn = 500
"""
# When this process ends, also by kill -9, its end of the pipe is closed and the pooler stopped.
_KEEPER = '"$@" & read -r _; kill $!; wait $!'


@dataclass(frozen=True)
class Pooler:
    """A pgbouncer that runs."""

    port: int

    def dsn(self, dsn: str) -> str:
        """The same login through the pooler."""
        changed: dict[str, Any] = {"host": "127.0.0.1", "port": self.port}
        return conninfo.make_conninfo(dsn, **changed)

    @contextmanager
    def at_once(self, dsn: str, count: int = SHARED) -> Iterator[Sequence[psycopg.Connection[Any]]]:
        """So many clients with a transaction each, hence on a server connection each.

        Afterwards the pool has them all, and gives them out in turn.
        """
        with ExitStack() as stack:
            clients = [stack.enter_context(psycopg.connect(self.dsn(dsn))) for _ in range(count)]
            for client in clients:
                client.execute("select 1")
            yield clients


@dataclass(frozen=True)
class PooledDatabase(Database):
    """A database that workers reach through the pooler."""

    pooler: Pooler | None = None

    def dsn(self, role: str | None = None) -> str:
        direct = super().dsn(role)
        return self.pooler.dsn(direct) if self.pooler and role in POOLED_ROLES else direct


@contextmanager
def through(pooler: Pooler, database: Database) -> Iterator[PooledDatabase]:
    """The database by way of the pooler, where its workers share connections already."""
    pooled = PooledDatabase(database.server, database.name, pooler=pooler)
    for role in ("worker_a", "worker_b"):
        with pooler.at_once(database.dsn(role)):
            pass
    yield pooled
    pooled.close()


@contextmanager
def pgbouncer(server: TestServer) -> Iterator[Pooler]:
    """Start one in front of the server; skips where none is installed."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        unavailable("pgbouncer is not installed")
    with tempfile.TemporaryDirectory(prefix="pgfence-pgbouncer-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # as root it runs as somebody else, who reads its files
        auth_file, ini, log = (folder / part for part in ("users.txt", "pgbouncer.ini", "log"))
        auth_file.write_text("".join(f'"{role}" "{ROLE_PASSWORD}"\n' for role in LOGIN_ROLES))
        target = conninfo.conninfo_to_dict(server.dsn)
        (port,) = free_ports(1)
        ini.write_text(
            _INI.format(
                host=target["host"], port=target["port"], listen_port=port, auth_file=auth_file
            )
        )
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "pgbouncer", program, *user, str(ini)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(lambda: process.poll() is not None or listens(port), "pgbouncer listens")
            assert process.poll() is None, log.read_text()
            yield Pooler(port)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)
