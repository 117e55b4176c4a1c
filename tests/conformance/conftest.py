"""A driver, directly, through a pooler, and with the registry in another database; a registry that
signs, and a guarded table.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from tests.conformance.drivers import DRIVERS, Driver, Fence, Lease
from tests.elsewhere import use_registry_elsewhere
from tests.guarded import open_invoices
from tests.pgbouncer import through
from tests.registry import registry
from tests.support import PATIENCE, Database, Keys, wait_until
from tests.workers import end_lease, proof_of

RESOURCE = "invoice-batch/2026-07-19"
SETTLE = "update invoices set state = $2 where id = $1"


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Driver:
    chosen: Driver = request.param
    return chosen


ROUTES = ["direct", "pgbouncer", "elsewhere"]
#: For a module where a pooler changes nothing.
NOT_POOLED = pytest.mark.parametrize("route", ["direct", "elsewhere"], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every driver directly; through the pooler each test with one of its drivers, in turn, and
    so with the registry elsewhere.

    PGFENCE_CONFORMANCE=all has every test go both ways with every driver.
    """
    if os.environ.get("PGFENCE_CONFORMANCE") == "all":
        return
    ways = {
        item: way for item in items if isinstance(item, pytest.Function) and (way := _way(item))
    }
    drivers: dict[tuple[Path, str], list[str]] = defaultdict(list)
    for item, (driver, _) in ways.items():
        of_test = drivers[item.path, item.originalname]
        if driver not in of_test:
            of_test.append(driver)
    left_out = set()
    for item, (driver, route) in ways.items():
        of_test = drivers[item.path, item.originalname]
        turn = of_test[zlib.crc32(item.originalname.encode()) % len(of_test)]
        if route != "direct" and driver != turn:
            left_out.add(item)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _way(item: pytest.Function) -> tuple[str, str] | None:
    """The driver and the route of a test that has both."""
    parameters: dict[str, Any] = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    if not {"driver", "route"} <= parameters.keys():
        return None
    return parameters["driver"].name, parameters["route"]


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> str:
    """How the workers reach the server, and whether its registry is elsewhere."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def database(database: Database, route: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """The fresh database, by the route."""
    if route != "pgbouncer":
        yield database
    else:
        with through(request.getfixturevalue("pooler"), database) as pooled:
            yield pooled


@pytest.fixture
def registered(database: Database, route: str, request: pytest.FixtureRequest) -> Database:
    """The database of the registry."""
    if route != "elsewhere":
        return database
    registry_database: Database = request.getfixturevalue("registry_database")
    use_registry_elsewhere(database, registry_database, tolerance_ms=100)
    return registry_database


@pytest.fixture
def served(database: Database, registered: Database, keys: Keys) -> Iterator[Database]:
    """A database with ten open invoices behind the guard, and a registry that signs."""
    open_invoices(database)
    with registry(registered, keys):
        yield database


Connect = Callable[..., Fence]


@pytest.fixture
def connect_unserved(
    driver: Driver, database: Database, registered: Database, route: str
) -> Iterator[Connect]:
    """Connect as a role, or to a DSN; closed at the end. No registry process runs yet.

    registry_dsn: how the registry is reached, with the database where it is here.
    """
    with ExitStack() as stack:

        def connect_as(
            role: str = "worker_a",
            dsn: str | None = None,
            registry_dsn: str | None = None,
            **options: Any,
        ) -> Fence:
            if route == "elsewhere":
                options["registry"] = registry_dsn or registered.dsn(role)
            else:
                dsn = registry_dsn or dsn
            fence = driver.connect(dsn or database.dsn(role), **options)
            stack.callback(fence.close)
            return fence

        yield connect_as


@pytest.fixture
def connect(served: Database, connect_unserved: Connect) -> Connect:
    """The same with ten open invoices and a registry that signs."""
    return connect_unserved


@pytest.fixture
def end(registered: Database, route: str) -> Callable[[Lease], str]:
    """Let a lease be over, for its worker and for the database; the refusal that comes of it."""

    def end(lease: Lease) -> str:
        end_lease(registered, lease.grant.lease)
        if route != "elsewhere":
            return "NOT_HELD"
        lease.renew_now()
        assert lease.lost.wait(PATIENCE)
        last = proof_of(lease.shown.token).valid_until
        wait_until(lambda: time.time() * 1_000_000 > last, "its last proof is over")
        return "STALE_STATUS"

    return end


def states(database: Database) -> dict[int, str]:
    """The invoices as they stand."""
    with psycopg.connect(database.dsn()) as conn:
        return dict(conn.execute("select id, state from invoices order by id").fetchall())


def count(database: Database, query: LiteralString) -> int:
    """What a query counts, as superuser."""
    with psycopg.connect(database.dsn()) as conn:  # not kept: tests wait for a count to change
        row = conn.execute(query).fetchone()
    assert row is not None
    return int(row[0])
