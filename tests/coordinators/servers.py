"""Lock services for tests: real servers on loopback, one or several, killed at the end."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import httpx
import redis
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.support import fast_folder, free_ports, unavailable, wait_until


def program(name: str, package: str) -> str:
    """The path of a program; where it is missing, the test is skipped, or fails in CI."""
    return shutil.which(name) or unavailable(f"no {name}: apt-get install {package}")


class Servers(ABC):
    """A lock service of one server or of several."""

    #: As in the URL, and in a grant's `backend`.
    name: str

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.folder = Path(tempfile.mkdtemp(prefix="pgfence-lock-", dir=fast_folder()))
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count

    @abstractmethod
    def command(self, number: int) -> Sequence[str]:
        """What starts a server."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether all that run serve clients."""

    @abstractmethod
    def leader(self) -> int:
        """Which one leads; -1 when none does."""

    @abstractmethod
    def end_session_of(self, key: str) -> None:
        """End the session of the key with this value, as when its time had run out."""

    @abstractmethod
    def keys(self, directory: str) -> list[str]:
        """The values of the keys in a directory, the holder's first."""

    @abstractmethod
    def put_stranger(self, directory: str) -> None:
        """Put something into a directory that is no key of ours, nor text."""

    @abstractmethod
    def delete(self, directory: str) -> None:
        """Delete whatever is in a directory, as an operator may."""

    #: Whether who waits has a key, and so a session that may end.
    waiters_have_keys = True
    #: In a request that puts a key, and in no other.
    putting: bytes

    @property
    @abstractmethod
    def addresses(self) -> list[tuple[str, int]]:
        """Where clients find them."""

    def url(self, addresses: Sequence[tuple[str, int]] | None = None) -> str:
        """The coordinator's URL; by way of other addresses where a proxy is in between."""
        hosts = ",".join(f"{host}:{port}" for host, port in addresses or self.addresses)
        return f"{self.name}://{hosts}"

    def __enter__(self) -> Self:
        try:
            for number in range(self.count):
                self.start(number)
            self.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(self.count):
            self.kill(number)
        shutil.rmtree(self.folder)

    def start(self, number: int = 0) -> None:
        """Start a server, or start it again with the data that it has."""
        with (self.folder / f"log-{number}").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                self.command(number), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_until_ready(self) -> None:
        """Return when they serve."""
        wait_until(self.is_ready, f"{self.name} serves (its log is in {self.folder})")

    def kill(self, number: int = 0) -> None:
        """kill -9"""
        process, self.processes[number] = self.processes[number], None
        if process is not None:
            process.kill()
            process.wait()

    def kill_leader(self) -> int:
        """kill -9 for the leader; which one it was."""
        wait_until(lambda: self.leader() >= 0, f"{self.name} has a leader")
        number = self.leader()
        self.kill(number)
        return number

    def restart(self) -> None:
        """Kill all of them, and start them again with their data."""
        for number in range(self.count):
            self.kill(number)
        for number in range(self.count):
            self.start(number)
        self.wait_until_ready()

    def running(self) -> list[int]:
        """Which ones run."""
        return [number for number, process in enumerate(self.processes) if process]


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


class Etcd(Servers):
    """etcd."""

    name = "etcd"

    def __init__(self, count: int = 1) -> None:
        self._program = program("etcd", "etcd-server")
        super().__init__(count)
        ports = free_ports(2 * count)
        self._clients, self._peers = ports[:count], ports[count:]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", port) for port in self._clients]

    def _peer(self, number: int) -> str:
        return f"http://127.0.0.1:{self._peers[number]}"

    @property
    def _cluster(self) -> str:
        return ",".join(f"n{number}={self._peer(number)}" for number in range(self.count))

    def command(self, number: int) -> list[str]:
        client = f"http://127.0.0.1:{self._clients[number]}"
        options = {
            "name": f"n{number}",
            "data-dir": str(self.folder / f"n{number}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": self._peer(number),
            "initial-advertise-peer-urls": self._peer(number),
            "initial-cluster": self._cluster,
            "initial-cluster-token": "pgfence-tests",
        }
        return [self._program, *(f"--{name}={value}" for name, value in options.items())]

    def ask(self, number: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One question to one member; empty when it does not answer."""
        try:
            url = f"http://127.0.0.1:{self._clients[number]}/v3/{path}"
            answer: dict[str, Any] = httpx.post(url, json=body, timeout=2).json()
        except (httpx.HTTPError, ValueError):
            return {}
        return answer

    def answered(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the first member that runs says, as soon as it can: it may lack a leader."""
        said: list[dict[str, Any]] = [{}]

        def has_said() -> bool:
            said[0] = self.ask(self.running()[0], path, body)
            return "header" in said[0]

        wait_until(has_said, f"etcd answers {path}")
        return said[0]

    def is_ready(self) -> bool:
        # A linearizable read: it needs a leader and a quorum.
        return all("header" in self.ask(n, "kv/range", {"key": "AA=="}) for n in self.running())

    def leader(self) -> int:
        for number in self.running():
            status = self.ask(number, "maintenance/status", {})
            if status and status["leader"] == status["header"]["member_id"]:
                return number
        return -1

    putting = b"kv/txn"

    def _keys(self, prefix: str) -> list[dict[str, str]]:
        answer: list[dict[str, str]] = self.answered(
            "kv/range",
            {
                "key": _base64(prefix),
                "range_end": _base64(prefix[:-1] + chr(ord(prefix[-1]) + 1)),
                "sort_order": "ASCEND",
                "sort_target": "CREATE",
            },
        ).get("kvs", [])
        return answer

    def keys(self, directory: str) -> list[str]:
        return [b64decode(kv["value"]).decode() for kv in self._keys(f"{directory}/")]

    def end_session_of(self, key: str) -> None:
        (lease,) = [kv["lease"] for kv in self._keys("/") if kv["value"] == _base64(key)]

        def is_gone() -> bool:
            self.ask(self.running()[0], "lease/revoke", {"ID": lease})
            return all(kv["lease"] != lease for kv in self._keys("/"))

        wait_until(is_gone, "etcd has ended the session")

    def put_stranger(self, directory: str) -> None:
        put = {"key": _base64(f"{directory}/stranger"), "value": b64encode(b"\xff").decode()}
        assert self.ask(self.running()[0], "kv/put", put)

    def delete(self, directory: str) -> None:
        below = {"key": _base64(f"{directory}/"), "range_end": _base64(f"{directory}0")}
        assert self.ask(self.running()[0], "kv/deleterange", below)

    def save(self, path: Path) -> None:
        """Write a snapshot of the first member, as `etcdctl snapshot save` does."""
        self._etcdctl("--endpoints", f"127.0.0.1:{self._clients[0]}", "snapshot", "save", str(path))

    def restore(self, path: Path) -> None:
        """Kill all members, and start them with what a snapshot has."""
        for number in range(self.count):
            self.kill(number)
        for number in range(self.count):
            shutil.rmtree(self.folder / f"n{number}")
            self._etcdctl(
                "snapshot", "restore", str(path),
                "--name", f"n{number}",
                "--data-dir", str(self.folder / f"n{number}"),
                "--initial-cluster", self._cluster,
                "--initial-cluster-token", "pgfence-tests",
                "--initial-advertise-peer-urls", self._peer(number),
            )  # fmt: skip
        self.restart()

    def _etcdctl(self, *arguments: str) -> None:
        subprocess.run(
            [program("etcdctl", "etcd-client"), *arguments],
            env={"ETCDCTL_API": "3"},
            check=True,
            capture_output=True,
        )


class Redis(Servers):
    """Redis, without persistence unless it is asked to save."""

    name = "redis"
    waiters_have_keys = False
    putting = b"NX"

    def __init__(self) -> None:
        self._program = program("redis-server", "redis-server")
        super().__init__(1)
        (self._port,) = free_ports(1)
        self.client = redis.Redis(port=self._port, decode_responses=True)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", self._port)]

    def command(self, number: int) -> list[str]:
        options = {
            "port": str(self._port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "no",
        }
        return [self._program, *(part for name in options for part in (f"--{name}", options[name]))]

    def __exit__(self, *arguments: object) -> None:
        self.client.close()
        super().__exit__(*arguments)

    def is_ready(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def leader(self) -> int:
        return 0

    def keys(self, directory: str) -> list[str]:
        value = self.client.get(directory)
        return [] if value is None else [str(value).rpartition(" ")[0]]

    def end_session_of(self, key: str) -> None:
        (name,) = [name for name in self.client.scan_iter() if self.keys(str(name)) == [key]]
        self.client.delete(name)

    def put_stranger(self, directory: str) -> None:
        self.client.set(directory, b"\xff")

    def delete(self, directory: str) -> None:
        self.client.delete(directory)


class ZooKeeper(Servers):
    """ZooKeeper; its ticks are short, so sessions may be."""

    name = "zookeeper"
    # The path of a new node, and nothing else, ends in a hyphen.
    putting = b"-\0\0\0"

    def __init__(self, count: int = 1) -> None:
        self._java = program("java", "default-jre-headless")
        jars = [Path("/usr/share/java", name) for name in _ZOOKEEPER_JARS]
        if not all(jar.exists() for jar in jars):
            unavailable("no ZooKeeper: apt-get install zookeeper")
        super().__init__(count)
        ports = free_ports(3 * count)
        self._clients, peers = ports[:count], ports[count:]
        log4j = "log4j.rootLogger=WARN, A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\n"
        log4j += "log4j.appender.A.layout=org.apache.log4j.SimpleLayout\n"
        (self.folder / "log4j.properties").write_text(log4j)
        self._class_path = ":".join(map(str, [self.folder, *jars]))
        for number in range(count):
            data = self.folder / f"data-{number}"
            data.mkdir()
            (data / "myid").write_text(f"{number + 1}")
            settings = [
                "tickTime=500",
                "initLimit=20",
                "syncLimit=10",
                "maxSessionTimeout=60000",
                f"dataDir={data}",
                f"clientPort={self._clients[number]}",
                "clientPortAddress=127.0.0.1",
                "4lw.commands.whitelist=*",
                "admin.enableServer=false",
                "forceSync=no",
            ]
            if count > 1:
                settings += [
                    f"server.{n + 1}=127.0.0.1:{peers[2 * n]}:{peers[2 * n + 1]}"
                    for n in range(count)
                ]
            (self.folder / f"{number}.cfg").write_text("\n".join(settings) + "\n")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", port) for port in self._clients]

    def command(self, number: int) -> list[str]:
        return [
            self._java, "-Xmx128m", "-XX:+UseSerialGC", "-cp", self._class_path,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.folder / f"{number}.cfg"),
        ]  # fmt: skip

    def _mode(self, number: int) -> str:
        """What a server says that it is: standalone, leader or follower; else nothing."""
        try:
            with socket.create_connection(("127.0.0.1", self._clients[number]), 2) as conn:
                conn.sendall(b"srvr")
                said = b"".join(iter(lambda: conn.recv(4096), b"")).decode()
        except OSError:
            return ""
        _, _, mode = said.partition("Mode: ")
        return mode.partition("\n")[0]

    def is_ready(self) -> bool:
        return all(self._mode(number) for number in self.running())

    def leader(self) -> int:
        for number in self.running():
            if self._mode(number) in ("leader", "standalone"):
                return number
        return -1

    def keys(self, directory: str) -> list[str]:
        with self._client() as client:
            return [value for _, value, _ in self._nodes(client, directory)]

    def end_session_of(self, key: str) -> None:
        with self._client() as client:
            for audience in client.get_children("/pgfence"):
                for resource in client.get_children(f"/pgfence/{audience}"):
                    place = f"/pgfence/{audience}/{resource}"
                    for _, value, path in self._nodes(client, place):
                        if value == key:
                            client.delete(path)

    def put_stranger(self, directory: str) -> None:
        with self._client() as client:
            client.ensure_path(directory)
            client.create(f"{directory}/stranger", None)

    def delete(self, directory: str) -> None:
        with self._client() as client:
            client.delete(directory, recursive=True)

    def wipe(self) -> None:
        """Kill all of them, and start them with nothing."""
        for number in range(self.count):
            self.kill(number)
            for version in (self.folder / f"data-{number}").glob("version-*"):
                shutil.rmtree(version)
        self.restart()

    @contextmanager
    def _client(self) -> Iterator[KazooClient]:
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        client = KazooClient(hosts=hosts)
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def _nodes(self, client: KazooClient, directory: str) -> list[tuple[int, str, str]]:
        found = []
        client.sync("/")
        with suppress(NoNodeError):
            for name in client.get_children(directory):
                with suppress(NoNodeError):
                    path = f"{directory}/{name}"
                    value, stat = client.get(path)
                    found.append((stat.czxid, value.decode(), path))
        return sorted(found)


_ZOOKEEPER_JARS = ("zookeeper.jar", "slf4j-log4j12.jar", "log4j-1.2.jar")
