"""The embedded PostgreSQL: who can connect, what it leaves behind, as root and as anybody else."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgfence import embedded
from tests import support

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def running(bin_dir: Path) -> Iterator[embedded.Server]:
    with embedded.Server(bin_dir, parent=support.fast_folder()) as server:
        yield server


def query(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(statement).fetchone()
        assert row is not None
        return row[0]


def test_nobody_connects_without_the_password(running: embedded.Server) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(running.dsn(password="guessed"))
    rules = "select count(*) from pg_hba_file_rules where auth_method <> 'scram-sha-256'"
    assert query(running.dsn(), rules) == 0


def test_it_listens_on_loopback_only(running: embedded.Server) -> None:
    assert query(running.dsn(), "show listen_addresses") == "127.0.0.1"
    assert query(running.dsn(), "show unix_socket_directories") == ""


def test_others_on_the_machine_can_read_neither_password_nor_data_nor_log(
    running: embedded.Server,
) -> None:
    assert stat.S_IMODE(running.password_file.stat().st_mode) == 0o600
    assert running.password_file.stat().st_uid == os.geteuid()
    assert stat.S_IMODE(running.log_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(running.data_dir.stat().st_mode) == 0o700


def test_libpq_finds_the_password_in_the_file(running: embedded.Server) -> None:
    with psycopg.connect(
        host="127.0.0.1",
        port=running.port,
        user="postgres",
        dbname="postgres",
        passfile=str(running.password_file),
    ) as conn:
        assert conn.info.status == psycopg.pq.ConnStatus.OK


def test_the_server_never_runs_as_root(running: embedded.Server) -> None:
    assert (running.data_dir / "postmaster.pid").stat().st_uid != 0  # the server itself makes it


def test_data_and_port_stay_over_stop_and_start(bin_dir: Path) -> None:
    server = embedded.Server(bin_dir, parent=support.fast_folder())
    (server.port,) = support.free_ports(1)  # nobody takes it while the server is down
    with server:
        port = server.port
        with psycopg.connect(server.dsn()) as conn:
            conn.execute("create table kept ()")
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.dsn())
        server.start()
        assert server.port == port
        assert query(server.dsn(), "select count(*) from kept") == 0


def test_a_killed_server_starts_again(bin_dir: Path) -> None:
    with embedded.Server(bin_dir, parent=support.fast_folder()) as server:
        os.kill(server.pid, signal.SIGKILL)
        server.stop()
        server.start()
        assert query(server.dsn(), "select 1") == 1


def test_a_server_that_is_just_ending_by_itself_is_waited_for(
    bin_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded.Server(bin_dir, parent=support.fast_folder()) as server:
        process = server._process
        assert process
        os.kill(server.pid, signal.SIGINT)
        support.wait_until(
            lambda: not (server.data_dir / "postmaster.pid").exists(), "the server has said so"
        )
        monkeypatch.setattr(process, "poll", lambda: None)  # its end is not noticed yet
        server.stop()
        assert process.returncode == 0
        server.start()
        assert query(server.dsn(), "select 1") == 1


def test_removing_it_leaves_neither_process_nor_folder(bin_dir: Path) -> None:
    with embedded.Server(bin_dir, parent=support.fast_folder()) as server:
        port = server.port
    assert not support.listens(port)
    assert not server.directory.exists()


CHILD = """
import os, sys, time
from pathlib import Path
from pgfence import embedded
parent = Path(sys.argv[2]) if sys.argv[2] else None
server = embedded.Server(Path(sys.argv[1]), parent=parent, keep=bool(sys.argv[3])).start()
print(server.pid, server.port, server.data_dir, server.dsn(), flush=True)
time.sleep(60)
"""


def start_in_a_child(
    bin_dir: Path, *, keep: bool = False
) -> tuple[subprocess.Popen[str], list[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, bin_dir, support.fast_folder() or "", "keep" if keep else ""],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdout
    words = child.stdout.readline().split()
    assert words, "the child started no server"
    return child, words


def test_the_server_and_its_data_go_when_python_is_killed(bin_dir: Path) -> None:
    child, (_, port, data, _) = start_in_a_child(bin_dir)
    with child:
        child.kill()
    support.wait_until(lambda: not support.listens(int(port)), "the server has stopped")
    support.wait_until(
        lambda: not Path(data).exists() or not any(Path(data).iterdir()), "the data is gone"
    )
    shutil.rmtree(Path(data).parent, ignore_errors=True)  # as root, empty but for the log


def test_the_server_goes_too_where_its_keeper_can_write_nothing(bin_dir: Path) -> None:
    """As on a full disk."""
    child, (pid, port, data, _) = start_in_a_child(bin_dir)
    Path(data).chmod(0o500)
    with child:
        child.kill()
    try:
        support.wait_until(lambda: not support.listens(int(port)), "the server has stopped")
    except BaseException:
        os.kill(int(pid), signal.SIGQUIT)
        raise
    finally:
        Path(data).chmod(0o700)
        shutil.rmtree(Path(data).parent, ignore_errors=True)


def test_a_kept_server_outlives_python(bin_dir: Path) -> None:
    child, (pid, port, data, dsn) = start_in_a_child(bin_dir, keep=True)
    with child:
        child.kill()
    try:
        time.sleep(0.2)  # what would stop it has had its chance
        assert query(dsn, "select 1") == 1
    finally:
        os.kill(int(pid), signal.SIGQUIT)
        support.wait_until(lambda: not support.listens(int(port)), "the server has stopped")
        shutil.rmtree(Path(data).parent)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(embedded.EmbeddedServerError, match="postgres is missing"):
        embedded.Server(tmp_path)


def test_a_bad_setting_shows_what_the_server_said(bin_dir: Path) -> None:
    server = embedded.Server(bin_dir, settings={"no_such_setting": 1})
    with pytest.raises(embedded.EmbeddedServerError, match="no_such_setting"), server:
        pass
    assert not server.directory.exists()


def test_a_port_that_is_taken_meanwhile_is_given_up(
    bin_dir: Path, running: embedded.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = embedded._free_port
    ports = iter([running.port])
    monkeypatch.setattr(embedded, "_free_port", lambda: next(ports, None) or real())
    with embedded.Server(bin_dir, parent=support.fast_folder()) as server:
        assert server.port != running.port


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
def test_root_copies_programs_that_the_server_user_may_not_read(tmp_path: Path) -> None:
    package = embedded.wheel_bin_dir().parents[1]
    hidden = tmp_path / "only for root"
    hidden.mkdir(mode=0o700)
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.with_name(name), hidden / name, symlinks=True)
    with embedded.Server(hidden / package.name / "pginstall" / "bin") as server:
        assert server.bin_dir.is_relative_to(server.directory)
        assert query(server.dsn(), "select 1") == 1


@needs_root
def test_an_ordinary_user_starts_it_too() -> None:
    nobody = pwd.getpwnam("nobody")
    code = (
        "from pgfence import embedded; import psycopg\n"
        "with embedded.Server() as s:\n"
        "    print(psycopg.connect(s.dsn()).execute('select 1').fetchone()[0])\n"
    )
    try:
        result = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            user=nobody.pw_uid,
            group=nobody.pw_gid,
            extra_groups=[],
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
            capture_output=True,
            text=True,
            check=False,
        )
    except PermissionError:
        pytest.skip("this checkout or its Python is hidden from ordinary users")
    assert result.stdout == "1\n", result.stderr
