"""How long a resource took to change hands, as the database knows it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import Database, Keys
from tests.workers import Worker, end_lease

RESOURCE = "invoice-batch/2026-07-19"


@pytest.fixture
def workers(database: Database, keys: Keys) -> tuple[Worker, Worker]:
    return Worker.login(database, keys, "worker_a"), Worker.login(database, keys, "worker_b")


def handovers(database: Database) -> list[Any]:
    conn = database.connect("auditor")
    return conn.execute(
        "select fence_token, previous_owner, owner, written_at - free_at, handover_ms"
        " from pgfence.handovers('-infinity')"
    ).fetchall()


@pytest.mark.parametrize("end", ["released", "expired"])
def test_a_handover_lasts_from_the_end_of_the_lease_to_the_next_owner_s_first_write(
    database: Database, workers: tuple[Worker, Worker], end: str
) -> None:
    first, second = workers
    held = first.acquire(RESOURCE)
    first.apply(held.token, 1)
    assert second.ask(RESOURCE, "next").state == "WAIT"
    if end == "released":
        first.release(held.lease)
    else:
        end_lease(database, held.lease)
    newer = second.acquire(RESOURCE, "next")
    assert handovers(database) == []  # it has not written
    second.apply(newer.token, 1)
    ((fence_token, previous_owner, owner, took, ms),) = handovers(database)
    assert (fence_token, previous_owner, owner) == (newer.fence_token, "worker-a", "worker-b")
    assert 0 <= took.total_seconds() * 1000 <= ms < took.total_seconds() * 1000 + 1


def test_whoever_came_later_did_not_wait(
    database: Database, workers: tuple[Worker, Worker]
) -> None:
    first, second = workers
    held = first.acquire(RESOURCE)
    first.apply(held.token, 1)
    first.release(held.lease)
    second.apply(second.acquire(RESOURCE).token, 1)
    assert handovers(database) == []
