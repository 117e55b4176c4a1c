"""Each lock service, started once for the tests that leave it as it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest

import pgfence
from pgfence import coordinators
from pgfence.coordinators.protocol import directory
from tests.coordinators.servers import Etcd, Redis, Servers, ZooKeeper
from tests.registry import registry
from tests.support import AUDIENCE, Database, Keys, wait_until
from tests.workers import Worker

#: How each lock service is started: the name of a test's parameter, and what makes it.
KINDS: dict[str, Callable[[], Servers]] = {
    "etcd": Etcd,
    "etcd-3": lambda: Etcd(3),
    "zookeeper": ZooKeeper,
    "zookeeper-3": lambda: ZooKeeper(3),
    "redis": Redis,
}
#: What the tests of leases hold, one after the other.
RESOURCE = "invoice-batch/2026-07-19"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def running_servers() -> Iterator[Callable[[str], Servers]]:
    found: dict[str, Servers] = {}
    with ExitStack() as stack:

        def get(kind: str) -> Servers:
            if kind not in found:
                found[kind] = stack.enter_context(KINDS[kind]())
            return found[kind]

        yield get


@pytest.fixture(params=KINDS)
def servers(request: pytest.FixtureRequest, running_servers: Callable[[str], Servers]) -> Servers:
    """A lock service that the test leaves as it is."""
    return running_servers(request.param)


@pytest.fixture(params=KINDS)
def own_servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """A lock service of the test's own, which it may kill."""
    with KINDS[request.param]() as started:
        yield started


@pytest.fixture
def place() -> str:
    """The directory of a resource that nobody else asks for."""
    return directory("billing", f"invoice-batch/{next(_numbers)}")


class Coordinated:
    """A guarded database whose registry asks a coordinator, and workers that do."""

    def __init__(
        self, database: Database, keys: Keys, name: str, url: str, *services: Servers
    ) -> None:
        self.database = database
        self.name = name
        self.url = url
        self._keys = keys
        self._services = services
        self._registry = ExitStack()
        self.start_registry()

    @property
    def servers(self) -> Servers:
        """The lock service; the first of several."""
        return self._services[0]

    def start_registry(self) -> None:
        """A registry process, as a thread, that looks at the lock services directly."""
        urls = [servers.url() for servers in self._services]
        self._registry.enter_context(registry(self.database, self._keys, *urls))

    @contextmanager
    def no_registry(self) -> Iterator[None]:
        """No registry process runs in the block."""
        self._registry.close()
        try:
            yield
        finally:
            self.start_registry()

    def close(self) -> None:
        self._registry.close()

    def connect(self, role: str, url: str | None = None) -> pgfence.Fence:
        return pgfence.connect(self.database.dsn(role), coordinator=url or self.url)

    @contextmanager
    def hold(
        self, role: str, resource: str, *, url: str | None = None, ttl: float = 30.0, **more: Any
    ) -> Iterator[pgfence.Lease]:
        with (
            self.connect(role, url) as fence,
            fence.hold(resource, operation="settle", ttl=ttl, **more) as lease,
        ):
            yield lease

    def hold_once(self, role: str, resource: str, **more: Any) -> int:
        """Acquire and release; the fence."""
        with self.hold(role, resource, **more) as lease:
            return lease.fence_token

    def switch(self, to: str, *, mints: bool = True) -> None:
        """As an operator does."""
        rising = coordinators.capabilities(to).rising_tokens
        self.database.connect("dba").execute(
            "select pgfence_registry.switch_coordinator(%s, %s, %s)", [to, rising, mints]
        )

    def apply(self, role: str, token: str, segment: int) -> Any:
        """A worker that calls fenced_apply() whatever its client thinks of it."""
        return Worker.login(self.database, self._keys, role).apply(token, segment, "whatever")

    def request(self, role: str, request_id: str) -> Any:
        """A worker that asks in SQL without having a key."""
        return Worker.login(self.database, self._keys, role).call(
            "select * from pgfence_registry.request(%(id)s, %(resource)s, 'settle',"
            " pgfence.operation_root(%(resource)s, 'settle', %(id)s, ''), 60000, '', %(name)s)",
            {"id": request_id, "resource": RESOURCE, "name": self.name},
        )

    def ask_again(self, role: str, lease: pgfence.Lease) -> Any:
        """The request of a lease, made once more."""
        grant = lease.grant
        return Worker.login(self.database, self._keys, role).call(
            "select * from pgfence_registry.request(%s, %s, %s, %s, %s, '', %s)",
            [
                grant.request_id, grant.resource, grant.operation_class, grant.operation_root,
                grant.ttl_ms, self.name,
            ],
        )  # fmt: skip

    def wait_for_a_round_of_the_registry(self) -> None:
        """Return when the registry process has looked twice since: it signs what it finds then."""
        beside = "invoice-batch/beside"
        for _ in range(2):
            self.hold_once("worker_b", beside)

    def place(self, resource: str) -> str:
        return directory(AUDIENCE, resource)

    def keys(self, resource: str) -> list[str]:
        """The keys of a resource at the lock service, the holder's first."""
        return self.servers.keys(self.place(resource))

    def settled(self) -> int:
        return self._count("select count(*) from invoices where state = 'settled'")

    def grants(self, resource: str = RESOURCE) -> int:
        """How many grants of a resource were ever signed."""
        return self._count(
            "select count(*) from pgfence_registry.grants"
            f" where resource = '{resource}' and token is not null"
        )

    def _count(self, query: str) -> int:
        row = self.database.connect().execute(query).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def coordinate(
    invoices: Database, keys: Keys, running_servers: Callable[[str], Servers]
) -> Callable[..., AbstractContextManager[Coordinated]]:
    """coordinate(kind, *servers): the guarded database under a coordinator, else a shared one."""

    @contextmanager
    def begin(kind: str, *services: Servers) -> Iterator[Coordinated]:
        if kind == "postgres":
            found = Coordinated(invoices, keys, "postgres", "postgres", *services)
        else:
            servers = services[0] if services else running_servers(kind)
            if not services:  # what a test before could not give back ends with its session
                wait_until(lambda: servers.keys(directory(AUDIENCE, RESOURCE)) == [], "it is free")
            found = Coordinated(invoices, keys, servers.name, servers.url(), servers)
            found.switch(servers.name)
        try:
            yield found
        finally:
            found.close()

    return begin
