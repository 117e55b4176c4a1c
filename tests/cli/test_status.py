"""`pgfence status`: what it says, and to whom."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest

from pgfence.audit.status import Session
from tests.cli.conftest import Pgfence
from tests.cli.documents import ROOT, blocks
from tests.cli.test_commands import MANUAL
from tests.rollout import shadow
from tests.support import PATIENCE, Database, Keys, issue, wait_until_blocked
from tests.workers import Worker, as_owner, end_lease, fence_row, in_background

BATCH = "invoice-batch/2026-07-19"
AUDITOR_ONLY = "who holds it, who waits and what was refused is for a role in pgfence_auditor"


@pytest.fixture
def busy(database: Database, keys: Keys) -> Database:
    """A has written, B has taken it over and written, A was refused and waits again."""
    a, b = (Worker.login(database, keys, role) for role in ("worker_a", "worker_b"))
    first = a.acquire(BATCH, "first")
    assert a.apply(first.token, 1).verdict == "ACCEPTED"
    a.release(first.lease)
    root = fence_row(database, BATCH).operation_root
    second = b.acquire(BATCH, "second", continues_root=root)
    assert b.apply(second.token, 1).verdict == "ACCEPTED"
    assert a.apply(first.token, 2).verdict == "STALE_OWNER"
    assert a.ask(BATCH, "third").state == "WAIT"
    return database


def test_an_auditor_sees_who_holds_where_it_stands_who_waits_and_what_was_refused(
    pgfence: Pgfence, busy: Database
) -> None:
    said = pgfence("status", BATCH, on=busy, role="auditor")
    assert said.exit_code == 0, said.err
    lines = dict(re.findall(r"^(\w[\w ]*?)  +(.*?)\s*$", said.out, re.MULTILINE))
    assert re.fullmatch(r"worker-b, fence 2, until 20.* unless renewed", lines.pop("held by"))
    assert lines.pop("operation root") == fence_row(busy, BATCH).operation_root
    assert lines.pop("takes up").startswith("sha256:")
    assert re.fullmatch(r"[0-9a-f]{16} of worker_b, 20.*", lines.pop("last receipt"))
    assert lines == {
        "resource": BATCH,
        "mode": "enforced",
        "highest fence": "2",
        "written by": "worker-b",
        "last segment": "1, 2 by all owners",
    }
    assert re.search(r"\| worker-a +\| settle +\| third ", said.out)
    assert re.search(r"\| STALE_OWNER \| .* \| worker_a +\| +1 \|", said.out)


def test_an_ordinary_worker_sees_where_the_work_stands_and_no_more(
    pgfence: Pgfence, busy: Database
) -> None:
    said = pgfence("status", BATCH, on=busy, role="worker_a")
    assert said.exit_code == 0, said.err
    assert "written by      worker-b" in said.out
    assert said.out.endswith(f"{AUDITOR_ONLY}\n")
    assert "held by" not in said.out
    document = pgfence("status", BATCH, "--json", on=busy, role="worker_a").document
    assert (document["total_segments"], document["audited"]) == (2, None)


def test_a_role_without_rights_is_told_what_it_takes(pgfence: Pgfence, busy: Database) -> None:
    said = pgfence("status", BATCH, on=busy, role="outsider")
    assert said.exit_code == 4
    assert "This takes a role in pgfence_app or pgfence_auditor." in said.err


def test_a_paused_resource_is_exit_code_1_and_says_why(pgfence: Pgfence, busy: Database) -> None:
    as_owner(busy, "update pgfence.fences set paused_because = 'fence 7 came after 9'")
    said = pgfence("status", BATCH, on=busy, role="auditor")
    assert said.exit_code == 1
    assert f"fence 7 came after 9; `pgfence resume {BATCH}`" in said.out
    said = pgfence("status", BATCH, on=busy, role="worker_b")
    assert said.exit_code == 1
    assert "an auditor sees why" in said.out


def test_a_resource_that_nobody_asked_for_is_held_by_nobody(
    pgfence: Pgfence, database: Database
) -> None:
    shadow(database, "invoice-batch/")
    said = pgfence("status", BATCH, on=database, role="auditor")
    assert (said.exit_code, said.out.split()) == (
        0,
        f"resource {BATCH} held by nobody mode shadow highest fence none has written yet".split(),
    )


def test_a_lease_that_has_ended_is_held_by_nobody(pgfence: Pgfence, busy: Database) -> None:
    as_owner(busy, "update pgfence_registry.grants set lease_ends_at = clock_timestamp()")
    document = pgfence("status", BATCH, "--json", on=busy, role="auditor").document
    assert document["audited"]["holder"] is None


def test_a_grant_that_nobody_has_signed_is_shown_as_such(
    pgfence: Pgfence, database: Database, keys: Keys
) -> None:
    Worker.login(database, keys, "worker_a").ask(BATCH)
    said = pgfence("status", BATCH, on=database, role="auditor")
    assert "not signed yet: is a registry process running?" in said.out


def test_a_waiter_that_is_blocked_is_shown_and_so_is_the_session_that_it_waits_for(
    pgfence: Pgfence, database: Database, keys: Keys
) -> None:
    """It cannot say that it is alive, so it is seen for a minute more."""
    a, b = (Worker.login(database, keys, role) for role in ("worker_a", "worker_b"))
    held = a.acquire(BATCH)
    b.ask(BATCH, "next")
    as_owner(database, "update pgfence_registry.requests set alive_until = clock_timestamp()")
    a.conn.execute("begin")
    assert a.apply(held.token, 1).verdict == "ACCEPTED"
    document = pgfence("status", BATCH, "--json", on=database, role="auditor").document
    assert document["audited"]["held_up_by"] == []  # nobody waits for the row
    end_lease(database, held.lease)
    future = in_background(lambda: b.ask(BATCH, "next"))
    wait_until_blocked(database.watcher, b.pid)
    document = pgfence("status", BATCH, "--json", on=database, role="auditor").document
    (waiter,) = document["audited"]["waiters"]
    assert (waiter["workload"], waiter["request_id"]) == ("worker-b", "next")
    (session,) = document["audited"]["held_up_by"]
    assert session.pop("since")
    assert session == {"pid": a.pid, "role": "worker_a"}
    said = pgfence("status", BATCH, on=database, role="auditor")
    assert re.search(rf"\| +{a.pid} \| worker_a \| 20", said.out)
    (query,) = (b.text for b in blocks(ROOT / "docs/operations.md") if "_blocking_pids" in b.text)
    found = database.connect("auditor").execute(query.encode()).fetchall()
    assert found == [(a.pid, "worker_a", "pgfence.fences", b.pid, [])]
    a.conn.execute("rollback")
    assert future.result(PATIENCE).state == "SIGNING"


def test_json_has_the_keys_of_the_manual(pgfence: Pgfence, busy: Database) -> None:
    document = pgfence("status", BATCH, "--json", on=busy, role="auditor").document
    (row,) = re.findall(r"^\| `status` \| (.*) \|$", MANUAL, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", row))
    audited = document["audited"]
    shown = json.dumps(
        [
            list(document),
            list(audited),
            list(audited["holder"]),
            list(audited["waiters"][0]),
            [field.name for field in fields(Session)],
        ]
    )
    keys = set(re.findall(r"\w+", shown))
    words = {"pgfence_auditor", "ENFORCED", "SHADOW", "receipts", "owner"}
    assert named - words == keys - words
    receipts = pgfence("receipts", BATCH, "--json", on=busy, role="auditor").document
    assert audited["last_receipt"] == receipts[-1]
    refused = pgfence("refusals", "--json", on=busy, role="auditor").document
    assert audited["refusals"] == refused["refusals"]


def test_only_refusals_of_the_resource_are_shown(pgfence: Pgfence, busy: Database) -> None:
    issue(busy, "worker_a", "another")
    document = pgfence("status", "another", "--json", on=busy, role="auditor").document
    assert document["audited"]["refusals"] == []
