"""A failover that nobody but Patroni decides: the leader is killed, a replica leads (R39)."""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest

from tests import support
from tests.faults.failover.clusters import DATABASE
from tests.faults.failover.history import Side
from tests.support import Database, Keys, TestServer, free_ports, wait_until

PASSWORD = "only for this test"


@dataclass
class Node:
    """A PostgreSQL under Patroni, as a process of its own."""

    name: str
    folder: Path
    sql: int
    rest: int
    process: subprocess.Popen[bytes]

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self.sql}/postgres"

    def state(self) -> dict[str, Any]:
        """What Patroni says of it; {} while it does not answer."""
        time.sleep(0.1)  # it is asked again and again, and has work to do
        url = f"http://127.0.0.1:{self.rest}/patroni"
        with suppress(OSError), urlopen(url, timeout=5) as answer:
            said: dict[str, Any] = json.load(answer)
            return said
        return {}

    def is_leader(self) -> bool:
        said = self.state()
        return (said.get("role"), said.get("state")) == ("primary", "running")

    def kill(self) -> None:
        """kill -9 to Patroni and to its PostgreSQL, at once."""
        with suppress(FileNotFoundError, ProcessLookupError):
            postmaster = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
            os.kill(self.process.pid, signal.SIGKILL)
            os.kill(postmaster, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def nodes(bin_dir: Path) -> Iterator[list[Node]]:
    """Two servers and a third voter, which agree by Raft; nothing else is needed."""
    if importlib.util.find_spec("patroni") is None:
        pytest.skip("Patroni is not installed: pip install 'patroni[raft]'")
    if not (bin_dir / "pg_basebackup").exists():
        pytest.skip("this build of PostgreSQL has no pg_basebackup, with which Patroni copies")
    # Root's Python, which others may not be able to run, as somebody whom PostgreSQL obeys.
    somebody: list[str] = []
    if os.geteuid() == 0:
        user = pwd.getpwnam("nobody")
        somebody = ["unshare", "--user", f"--map-user={user.pw_uid}", f"--map-group={user.pw_gid}"]
        if subprocess.run([*somebody, "true"], check=False, capture_output=True).returncode:
            pytest.skip("as root this takes user namespaces, which are not allowed here")
    home = Path(tempfile.mkdtemp(prefix="pgfence-patroni-", dir=support.fast_folder()))
    raft = free_ports(3)
    processes: list[subprocess.Popen[bytes]] = []

    def run(program: str, number: int, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        folder = home / f"node{number}"
        folder.mkdir()
        settings |= {
            "scope": "billing",
            "raft": {
                "data_dir": str(folder / "raft"),
                "self_addr": f"127.0.0.1:{raft[number]}",
                "partner_addrs": [
                    f"127.0.0.1:{port}" for i, port in enumerate(raft) if i != number
                ],
            },
        }
        file = folder / "patroni.yml"
        file.write_text(json.dumps(settings))  # JSON is YAML
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*somebody, sys.executable, "-c", program, str(file)],
                cwd=folder,
                env={k: v for k, v in os.environ.items() if not k.startswith("PG")}
                | {"HOME": str(folder)},
                stdout=log,
                stderr=log,
            )
        processes.append(process)
        return process

    def node(number: int) -> Node:
        sql, rest = free_ports(2)
        folder = home / f"node{number}"
        settings = {
            "name": f"node{number}",
            "restapi": {"listen": f"127.0.0.1:{rest}", "connect_address": f"127.0.0.1:{rest}"},
            "bootstrap": {
                "dcs": {"ttl": 20, "loop_wait": 1, "retry_timeout": 3},
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"auth": "scram-sha-256"}],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{sql}",
                "connect_address": f"127.0.0.1:{sql}",
                "data_dir": str(folder / "data"),
                "bin_dir": str(bin_dir.absolute()),
                "authentication": {
                    "superuser": {"username": "postgres", "password": PASSWORD},
                    "replication": {"username": "replicator", "password": PASSWORD},
                },
                "parameters": {"unix_socket_directories": str(folder), "fsync": "off"},
                "pg_hba": [
                    "local all all scram-sha-256",
                    "host all all 127.0.0.1/32 scram-sha-256",
                    "host replication replicator 127.0.0.1/32 scram-sha-256",
                ],
            },
        }
        process = run("from patroni.__main__ import main; main()", number, settings)
        return Node(f"node{number}", folder, sql, rest, process)

    started: list[Node] = []
    try:
        run("from patroni.raft_controller import main; main()", 2, {})
        started = [node(0), node(1)]
        yield started
    finally:
        for log in sorted(home.glob("*/log")):
            print(f"{log.parent.name}:\n{log.read_text()[-3000:]}")
        for each in started:
            each.kill()
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(home)


@pytest.mark.timeout(300)
@pytest.mark.rule("R7", "R39")
def test_r39_a_failover_by_patroni_needs_no_operator(nodes: list[Node], keys: Keys) -> None:
    wait_until(
        lambda: (
            sorted(n.state().get("state", "") for n in nodes) == ["running", "running"]
            and any(n.is_leader() for n in nodes)
            and any(n.state().get("replication") for n in nodes)
        ),
        "a leader and a replica run",
        timeout=120,
    )
    leader, replica = sorted(nodes, key=lambda n: not n.is_leader())
    server = TestServer(leader.dsn)
    support.create_login_roles(server)
    database = support.create_guarded_database(server, DATABASE, keys)
    owner = database.connect("billing_owner")
    owner.execute(
        "create table ledger (resource text, fence bigint, segment bigint, writer text"
        " default session_user)"
    )
    owner.execute("grant select, insert on ledger to worker_a, worker_b")
    owner.execute("select pgfence.protect('ledger', '{resource}')")
    old = Side(database, keys)
    held = old.acquire("worker_a", "r")
    assert held
    assert old.apply(held) == "ACCEPTED"
    with psycopg.connect(replica.dsn, autocommit=True) as conn, owner:
        written = owner.execute("select pg_current_wal_flush_lsn()").fetchone()
        wait_until(
            lambda: (
                conn.execute("select pg_last_wal_replay_lsn() >= %s", written).fetchone() == (True,)
            ),
            "the replica has what was written",
        )
    database.close()
    leader.kill()
    wait_until(replica.is_leader, "the replica is the leader")

    new = Side(Database(TestServer(replica.dsn), DATABASE), keys)
    try:
        assert new.apply(held) == "REBIND_REQUIRED"
        again = new.acquire("worker_b", "r")
        assert again
        assert again.fence_token > held.fence_token + 2**32
        assert new.apply(held) == "REVOKED_EPOCH"
        assert new.apply(again) == "ACCEPTED"
        new.assert_whole()
    finally:
        new.database.close()
