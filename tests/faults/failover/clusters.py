"""Servers that begin with the data of another one: standbys, backups, files that were put back."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import psycopg

from pgfence import embedded
from tests import support
from tests.support import Database, TestServer, wait_until

SETTINGS: dict[str, str | int] = {
    "fsync": "off",
    "shared_buffers": "16MB",
    "wal_keep_size": "512MB",
    "log_line_prefix": "%m [%p] %q%u@%d ",
}
DATABASE = "billing"


class Copy(embedded.Server):
    """A server on a copy of a stopped one's data; passwords and roles are in it.

    signal_file: standby.signal or recovery.signal, which say in what way it starts.
    """

    def __init__(
        self,
        source: embedded.Server,
        signal_file: str | None = None,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        self._source = source
        self._signal_file = signal_file
        self._database: Database | None = None
        super().__init__(
            source.bin_dir, settings={**SETTINGS, **(settings or {})}, parent=support.fast_folder()
        )
        (self.port,) = support.free_ports(1)  # nobody takes it while the server is down

    def _initdb(self) -> None:
        """In place of initdb: the same files, owned by the same user."""
        self.password = self._source.password
        subprocess.run(["cp", "-a", f"{self._source.data_dir}/.", self.data_dir], check=True)
        if self._signal_file:
            (self.data_dir / self._signal_file).touch()

    @property
    def database(self) -> Database:
        """The guarded database on it."""
        if self._database is None:
            self._database = Database(TestServer(self.dsn(), self.log_file), DATABASE)
        return self._database

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop, as the server does; our connections to it are closed first."""
        if self._database:
            self._database.close()
        super().stop(mode)

    def execute(self, query: str, *parameters: Any) -> Any:
        """One statement as superuser; the first column of its row, if it answers one."""
        with psycopg.connect(self.dsn(DATABASE), autocommit=True) as conn:
            cursor = conn.execute(query, parameters)
            row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None

    def wait_until_promoted(self) -> None:
        """Return when the server takes writes."""
        wait_until(
            lambda: self.execute("select pg_is_in_recovery()") is False,
            "recovery has ended",
        )


class Standby(Copy):
    """A streaming standby of a running server, made from what that one began with."""

    def __init__(self, source: embedded.Server, primary: Copy) -> None:
        self._primary = primary
        super().__init__(source, "standby.signal")
        # Not on the command line, which ALTER SYSTEM could not change.
        with (self.data_dir / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{primary.dsn()}'\n")

    def catch_up(self) -> None:
        """Return when everything that the primary has written is here."""
        written = self._primary.execute("select pg_current_wal_flush_lsn()")
        wait_until(
            lambda: self.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", written),
            "the standby has caught up",
        )

    def cut(self) -> None:
        """Let nothing more of what the primary writes get here."""
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            conn.execute("alter system set primary_conninfo = ''")
            conn.execute("select pg_reload_conf()")
        wait_until(
            lambda: self.execute("select count(*) from pg_stat_wal_receiver") == 0,
            "the standby receives nothing any more",
        )

    def promote(self) -> None:
        """Make it a primary of its own."""
        assert self.execute("select pg_promote(true, 60)")
        self.wait_until_promoted()


def client_program(name: str) -> Path:
    """psql, pg_dump and so on: the wheel's, else on the PATH. They talk to older servers too."""
    try:
        return embedded.wheel_bin_dir() / name
    except embedded.EmbeddedServerError as error:
        found = shutil.which(name)
        return Path(found) if found else support.unavailable(f"no {name}: {error}")
