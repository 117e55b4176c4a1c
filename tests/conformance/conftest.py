"""A driver, directly, through a pooler, and with the registry in another database; a registry that
signs, and a guarded table.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, LiteralString

import psycopg
import pytest

from tests.conformance.drivers import DRIVERS, Driver, Fence
from tests.elsewhere import use_registry_elsewhere
from tests.guarded import open_invoices
from tests.pgbouncer import through
from tests.registry import registry
from tests.support import Database, Keys

RESOURCE = "invoice-batch/2026-07-19"
SETTLE = "update invoices set state = $2 where id = $1"


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Driver:
    chosen: Driver = request.param
    return chosen


ROUTES = ["direct", "pgbouncer"]
#: For a module: one driver also with the registry in another database. test_elsewhere.py has all.
EVERYWHERE = pytest.mark.parametrize(
    ("driver", "route"),
    [*((driver, route) for driver in DRIVERS for route in ROUTES), (DRIVERS[0], "elsewhere")],
    ids=lambda chosen: getattr(chosen, "name", chosen),
    indirect=True,
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every driver directly; through the pooler each test with one driver, each driver in turn,
    and with the registry elsewhere with psycopg and the one whose turn it is.

    PGFENCE_CONFORMANCE=all has every test go through it with every driver.
    """
    if os.environ.get("PGFENCE_CONFORMANCE") == "all":
        return
    left_out = {item for item in items if isinstance(item, pytest.Function) and _is_left_out(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Function) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if parameters.get("route") not in ("pgbouncer", "elsewhere") or "driver" not in parameters:
        return False
    turns = [DRIVERS[zlib.crc32(item.originalname.encode()) % len(DRIVERS)]]
    if parameters["route"] == "elsewhere":
        turns.append(DRIVERS[0])
    return parameters["driver"] not in turns


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
def connect(
    driver: Driver, served: Database, registered: Database, route: str
) -> Iterator[Connect]:
    """Connect as a role, or to a DSN; closed at the end.

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
            fence = driver.connect(dsn or served.dsn(role), **options)
            stack.callback(fence.close)
            return fence

        yield connect_as


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
