"""One stopped server with a guarded database, of which the tests start copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pgfence import embedded
from tests import support
from tests.faults.failover.clusters import DATABASE, SETTINGS, Copy, Standby


@pytest.fixture(scope="session")
def image(bin_dir: Path, keys: support.Keys) -> Iterator[embedded.Server]:
    """A server, stopped in order: pgfence, roles, and a table behind the guard."""
    folder = support.fast_folder()
    with embedded.Server(bin_dir, settings=SETTINGS, parent=folder) as server:
        running = support.TestServer(server.dsn(), server.log_file)
        support.create_login_roles(running)
        database = support.create_guarded_database(running, DATABASE, keys)
        owner = database.connect("billing_owner")
        owner.execute(
            "create table ledger (resource text not null, fence bigint, segment bigint,"
            " writer text default session_user, primary key (resource, fence, segment))"
        )
        owner.execute("grant select, insert, update, delete on ledger to worker_a, worker_b")
        owner.execute("select pgfence.protect('ledger', '{resource}')")
        owner.close()
        server.stop()
        yield server


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    """What is entered here is removed at the end of the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def primary(image: embedded.Server, servers: ExitStack) -> Copy:
    """A server of its own for the test."""
    return servers.enter_context(Copy(image))


@pytest.fixture
def standby(image: embedded.Server, primary: Copy, servers: ExitStack) -> Standby:
    """A streaming standby of the primary."""
    return servers.enter_context(Standby(image, primary))
