"""A driver, directly and through a pooler, a registry that signs, and a guarded table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, LiteralString

import psycopg
import pytest

from tests.conformance.drivers import DRIVERS, Driver, Fence
from tests.pgbouncer import through
from tests.registry import registry
from tests.support import Database, Keys

RESOURCE = "invoice-batch/2026-07-19"
SETTLE = "update invoices set state = $2 where id = $1"


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Driver:
    chosen: Driver = request.param
    return chosen


@pytest.fixture(params=["direct", "pgbouncer"])
def route(request: pytest.FixtureRequest) -> str:
    """How the workers reach the server."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def database(database: Database, route: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """The fresh database, by the route."""
    if route == "direct":
        yield database
    else:
        with through(request.getfixturevalue("pooler"), database) as pooled:
            yield pooled


@pytest.fixture
def served(database: Database, keys: Keys) -> Iterator[Database]:
    """A database with ten open invoices behind the guard, and a registry that signs."""
    owner = database.connect("billing_owner")
    owner.execute(
        "create table invoices (id int primary key, batch date not null, state text not null)"
    )
    owner.execute(
        "insert into invoices select i, '2026-07-19', 'open' from generate_series(1, 10) as i"
    )
    owner.execute("grant select, insert, update, delete on invoices to worker_a, worker_b")
    owner.execute("select pgfence.protect('invoices', 'invoice-batch/{batch}')")
    with registry(database, keys):
        yield database


Connect = Callable[..., Fence]


@pytest.fixture
def connect(driver: Driver, served: Database) -> Iterator[Connect]:
    """Connect as a role, or to a DSN; closed at the end."""
    with ExitStack() as stack:

        def connect_as(role: str = "worker_a", dsn: str | None = None, **options: Any) -> Fence:
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
