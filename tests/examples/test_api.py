"""examples/api.py: a FastAPI endpoint with SQLAlchemy, as uvicorn serves it."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.examples.conftest import BATCH, BATCH_DATE, receipts, settled, started
from tests.guarded import refused
from tests.support import Database, Keys, free_ports, listens, wait_until
from tests.workers import Worker, end_lease

Post = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def post(invoices: Database, tools: dict[str, str]) -> Iterator[Post]:
    """Asks the service, which logs in as worker_a, to settle a page."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "uvicorn", "api:make_app", "--factory"]
    env = tools | {"PGFENCE_DSN": invoices.dsn("worker_a")}

    def ask(page: int, token: str, segment: int | None = None) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invoice-batches/{BATCH_DATE}/pages/{page}",
            method="POST",
            headers={"Pgfence-Grant": token, "Pgfence-Segment": str(segment or page)},
        )
        try:
            with urllib.request.urlopen(request) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    with started([*command, "--port", str(port), "--log-level", "warning"], env):
        wait_until(lambda: listens(port), "the service answers")
        yield ask


@pytest.mark.rule("R12", "R15")
def test_a_page_is_settled_once_however_often_the_request_comes(
    invoices: Database, keys: Keys, post: Post
) -> None:
    token = Worker.login(invoices, keys, "worker_a").acquire(BATCH).token
    status, first = post(1, token)
    assert (status, first["verdict"]) == (200, "ACCEPTED")
    assert post(1, token) == (200, first | {"verdict": "REPLAYED"})
    assert post(2, token)[1]["verdict"] == "ACCEPTED"
    assert settled(invoices) == [("worker_a", 400), (None, 100)]
    assert receipts(invoices) == [(BATCH, 1, 1), (BATCH, 1, 2)]


@pytest.mark.rule("R6", "R10", "R14")
def test_a_request_that_comes_too_late_is_refused_and_says_what_to_do(
    invoices: Database, keys: Keys, post: Post
) -> None:
    a, b = (Worker.login(invoices, keys, role) for role in ("worker_a", "worker_b"))
    held = a.acquire(BATCH)
    assert post(1, held.token)[0] == 200
    assert post(3, held.token)[1]["error"] == "SEGMENT_GAP"
    end_lease(invoices, held.lease)
    assert post(2, held.token)[1]["error"] == "NOT_HELD"
    taken = b.acquire(BATCH)
    assert b.advance(taken.token).verdict == "ADVANCED"
    status, body = post(2, held.token)
    assert (status, body["error"]) == (409, "STALE_OWNER")
    assert body["next_step"]
    # And B's grant is of no use to a service that logs in as A's workload.
    assert post(1, taken.token)[1]["error"] == "NOT_OWNER"
    assert settled(invoices) == [("worker_a", 200), (None, 300)]
    evidence = invoices.connect("auditor").execute(
        "select verdict from pgfence.refusals where occurrences > 0 order by first_at"
    )
    assert evidence.fetchall() == [
        (verdict,) for verdict in ("SEGMENT_GAP", "NOT_HELD", "STALE_OWNER", "NOT_OWNER")
    ]


@pytest.mark.rule("R23")
def test_an_endpoint_that_forgot_the_fence_could_not_write(invoices: Database) -> None:
    """The control."""
    with refused("PF201"):
        invoices.connect("worker_a").execute("update invoices set charged_cents = 0")


def test_what_is_no_grant_is_refused(post: Post) -> None:
    status, body = post(1, "v4.public.none")
    assert (status, body["error"]) == (409, "MALFORMED")


@pytest.mark.rule("R23")
def test_a_grant_for_another_batch_is_refused(invoices: Database, keys: Keys, post: Post) -> None:
    """The segment is admitted, and the guard stops the rows."""
    token = Worker.login(invoices, keys, "worker_a").acquire("invoice-batch/2026-07-18").token
    status, body = post(1, token)
    assert (status, body["error"]) == (409, "NOT_ADMITTED")
    assert body["next_step"]
    assert settled(invoices) == [(None, 500)]
    assert receipts(invoices) == []


def test_what_can_be_no_page_or_segment_is_the_caller_s_mistake(post: Post) -> None:
    for page, segment in ((0, 1), (2**70, 1), (2**53, 1), (1, 2**63), (1, 2**53), (1, -1)):
        assert post(page, "v4.public.none", segment)[0] == 422, (page, segment)
