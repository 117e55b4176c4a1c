"""A registry on a server whose clock is really another one, and is moved while it runs (R13, R51).

libfaketime (of the package of that name) gives the server its clock.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

import pgfence
from pgfence import embedded, errors
from pgfence.audit import elsewhere
from tests import support
from tests.elsewhere import Owner, use_registry_elsewhere
from tests.faults.conftest import RESOURCE
from tests.registry import registry
from tests.support import Database, Keys
from tests.workers import proof_of


@dataclass(frozen=True)
class Clock:
    """What moves the clock of the registry's server, and its database."""

    file: Path
    database: Database

    def set(self, seconds: float) -> None:
        """Let it be so many seconds ahead of the real one."""
        self.file.write_text(f"{seconds:+}\n", encoding="ascii")


@pytest.fixture(scope="module")
def moved(bin_dir: Path, keys: Keys) -> Iterator[Clock]:
    """The registry, on a server of its own."""
    found = importlib.util.find_spec("libfaketime")
    if found is None or found.origin is None:
        support.unavailable("the package libfaketime is not installed")
    library = Path(found.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        place = Path(scratch)
        place.chmod(0o755)  # the server runs as another user than root
        file = place / "clock"
        file.write_text("+0\n", encoding="ascii")
        file.chmod(0o644)
        patch.setenv("LD_PRELOAD", str(shutil.copy(library, place)))
        patch.setenv("FAKETIME_TIMESTAMP_FILE", str(file))
        patch.setenv("FAKETIME_NO_CACHE", "1")
        patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        with embedded.Server(
            bin_dir, settings={"fsync": "off"}, parent=support.fast_folder()
        ) as running:
            patch.undo()
            server = support.TestServer(running.dsn(), running.log_file)
            support.create_login_roles(server)
            database = support.create_guarded_database(server, "registry", keys, "registry")
            yield Clock(file, database)
            database.close()


@pytest.fixture
def clock(moved: Clock, invoices: Database) -> Iterator[Clock]:
    """The registry of `invoices`, for a tolerance of half a second."""
    moved.set(0)
    use_registry_elsewhere(invoices, moved.database)
    yield moved
    moved.set(0)


def connect(invoices: Database, clock: Clock) -> pgfence.Fence:
    dsn = clock.database.dsn("worker_a")
    return pgfence.connect(invoices.dsn("worker_a"), registry=dsn)


def findings(invoices: Database, clock: Clock) -> list[str]:
    """What doctor says."""
    with (
        psycopg.connect(invoices.dsn("auditor"), autocommit=True) as here,
        psycopg.connect(clock.database.dsn("auditor"), autocommit=True) as there,
    ):
        return [finding.code for finding in elsewhere.compare(here, there)]


@pytest.mark.parametrize("ahead", [-0.3, 0.3])
def test_r13_within_the_tolerance_work_goes_on(
    invoices: Database, clock: Clock, keys: Keys, caplog: pytest.LogCaptureFixture, ahead: float
) -> None:
    clock.set(ahead)
    with (
        registry(clock.database, keys),
        connect(invoices, clock) as fence,
        fence.hold(RESOURCE, operation="settle", ttl=10) as lease,
    ):
        for page in (1, 2):
            lease.apply({"page": page}, lambda tx: None)
    assert "will be refused" not in caplog.text
    assert findings(invoices, clock) == []


@pytest.mark.parametrize(("ahead", "reason"), [(-20, "ENDED"), (20, "FROM_THE_FUTURE")])
def test_r13_beyond_the_tolerance_nothing_is_written_and_it_is_said_why(
    invoices: Database,
    clock: Clock,
    keys: Keys,
    caplog: pytest.LogCaptureFixture,
    ahead: float,
    reason: str,
) -> None:
    clock.set(ahead)
    with (
        registry(clock.database, keys),
        caplog.at_level(logging.WARNING, "pgfence.client"),
        connect(invoices, clock) as fence,
        pytest.raises(errors.StaleStatusError) as caught,
        fence.hold(RESOURCE, operation="settle", ttl=10),
    ):
        pytest.fail("held")
    assert caught.value.verdict.reason == reason
    assert "status proofs will be refused" in caplog.text
    assert findings(invoices, clock) == ["CLOCKS_APART"]


def test_r51_a_registry_clock_that_jumps_there_and_back_lets_nobody_write_out_of_order(
    invoices: Database, clock: Clock, keys: Keys
) -> None:
    owner = Owner.login(invoices, clock.database, keys, "worker_a")
    rival = Owner.login(invoices, clock.database, keys, "worker_b")
    held = owner.acquire(RESOURCE, ttl_ms=300_000)
    proof = owner.prove(held.lease)
    assert owner.apply(held.token, 1, proof).verdict == "ACCEPTED"
    clock.set(1000)
    early = rival.acquire(RESOURCE, ttl_ms=300_000)
    assert early.state == "HELD"
    ahead = rival.prove(early.lease)
    assert rival.advance(early.token, ahead).reason == "FROM_THE_FUTURE"
    # The old owner's proof still runs. It writes, before anything that is of its successor.
    assert owner.apply(held.token, 2, proof).verdict == "ACCEPTED"
    clock.set(0)
    back = rival.prove(early.lease, proof_of(ahead).issued_at)
    assert proof_of(back).issued_at < proof_of(ahead).issued_at
    assert rival.advance(early.token, back).verdict == "ADVANCED"
    assert owner.apply(held.token, 3, proof).verdict == "STALE_OWNER"
    assert rival.apply(early.token, 1, back).verdict == "ACCEPTED"
