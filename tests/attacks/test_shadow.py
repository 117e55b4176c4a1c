"""Nothing that a client can do makes use of shadow for a resource that is enforced (R28, R29)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.guarded import BATCH, DAY, NEXT_BATCH, NEXT_DAY, make_table, protect, refused, run
from tests.rollout import enforce, evidence, shadow
from tests.support import Database, Keys
from tests.workers import Worker, forge, grant_of

PREFIX = "invoice-batch/"
WRITE = "insert into invoices values (1, '{day}', 10)"


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    """DAY is in shadow, all the rest of invoices is enforced."""
    owner = database.connect("billing_owner")
    make_table(owner, "invoices", "plain")
    shadow(database, PREFIX)
    shadow(database, BATCH)
    enforce(database, PREFIX)
    protect(owner, "invoices")
    return Worker.login(database, keys, "worker_a")


def test_r28_control_what_is_in_shadow_is_let_through(database: Database, worker: Worker) -> None:
    run(worker.conn, WRITE.format(day=DAY))
    assert len(evidence(database)) == 1


PREPARATIONS = {
    "nothing": "select 1",
    "a setting": "set pgfence.shadow = 'on'",
    "a temporary table": "create temporary table rollout (prefix text, shadow_since timestamptz);"
    " insert into rollout values ('', now())",
    "a write that was let through": WRITE.format(day=DAY),
    "the replica role's settings": "set session authorization default; reset all",
}


@pytest.mark.parametrize("preparation", PREPARATIONS.values(), ids=PREPARATIONS)
def test_r29_write_of_an_enforced_resource_is_refused_whatever_came_before(
    worker: Worker, preparation: str
) -> None:
    worker.conn.execute("begin")
    run(worker.conn, preparation)
    with refused():
        run(worker.conn, WRITE.format(day=NEXT_DAY))
    worker.conn.execute("rollback")


def test_r24_would_refuse_admits_nothing(database: Database, worker: Worker) -> None:
    held = worker.acquire(BATCH)
    worker.acquire(NEXT_BATCH)  # there is a fence that might be marked
    worker.conn.execute("begin")
    assert worker.apply(held.token, 7).verdict == "WOULD_REFUSE"
    with refused():
        run(worker.conn, WRITE.format(day=NEXT_DAY))
    worker.conn.execute("rollback")
    worker.conn.execute("begin")
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    with refused():
        run(worker.conn, WRITE.format(day=NEXT_DAY))
    worker.conn.execute("rollback")


def test_r28_token_that_names_a_resource_in_shadow_is_good_for_no_other(
    database: Database, keys: Keys, worker: Worker
) -> None:
    grant = grant_of(worker.acquire(NEXT_BATCH).token)
    for token in (
        forge(grant, keys, resource=BATCH),
        forge(grant, keys, resource=BATCH, owner="worker-b"),
    ):
        worker.conn.execute("begin")
        assert worker.apply(token, 1).verdict == "WOULD_REFUSE"
        with refused():
            run(worker.conn, WRITE.format(day=NEXT_DAY))
        worker.conn.execute("rollback")


@pytest.mark.parametrize(
    ("row", "statement"),
    [
        (DAY, f"update invoices set batch_date = '{NEXT_DAY}'"),
        (NEXT_DAY, f"update invoices set batch_date = '{DAY}'"),
    ],
)
def test_r29_row_does_not_move_between_an_enforced_resource_and_one_in_shadow(
    database: Database, worker: Worker, row: str, statement: str
) -> None:
    owner = database.connect("billing_owner")
    owner.execute("select pgfence.unprotect('invoices')")
    run(owner, WRITE.format(day=row))
    protect(owner, "invoices")
    with refused():
        run(worker.conn, statement)


def test_r29_prefix_is_compared_byte_by_byte(database: Database, worker: Worker) -> None:
    held = worker.acquire(PREFIX + DAY[:-1])  # shorter than the entry
    assert worker.apply(held.token, 4).verdict == "SEGMENT_GAP"
    held = worker.acquire(BATCH.upper())
    assert worker.apply(held.token, 4).verdict == "SEGMENT_GAP"


def test_r29_evidence_in_shadow_pushes_no_refusal_out(
    database: Database, keys: Keys, worker: Worker
) -> None:
    enforced = worker.acquire(NEXT_BATCH)
    assert worker.apply(enforced.token, 9).verdict == "SEGMENT_GAP"
    grant = grant_of(worker.acquire(BATCH).token)
    for number in range(140):
        worker.apply(forge(grant, keys, lease=f"l-{number}"), 1)
    found = database.connect("auditor").execute(
        "select verdict from pgfence.refusals where not in_shadow and occurrences > 0"
    )
    assert found.fetchall() == [("SEGMENT_GAP",)]


@pytest.mark.parametrize("role", ["worker_a", "billing_owner", "registry", "auditor"])
@pytest.mark.parametrize(
    "statement",
    [
        "select pgfence.shadow('x/')",
        "select pgfence.enforce('invoice-batch/2026-07-19')",
        "select pgfence._shadow_prefix('x/')",
        "select pgfence._refuse_write('invoices'::regclass, 'INSERT', 'x/1')",
        "insert into pgfence.rollout (prefix, shadow_since, shadow_by) values ('', now(), 'me')",
        "update pgfence.rollout set enforced_since = null",
        "delete from pgfence.rollout",
    ],
)
@pytest.mark.usefixtures("worker")
def test_r29_only_the_owner_changes_the_rollout(
    database: Database, role: str, statement: str
) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(database.connect(role), statement)


def test_r29_pg_write_all_data_does_not_change_the_rollout(database: Database) -> None:
    shadow(database, PREFIX)
    superuser = database.connect()
    superuser.execute("grant pg_write_all_data to outsider")
    outsider: psycopg.Connection[Any] = database.connect("outsider")
    try:
        for statement in (
            "insert into pgfence.rollout (prefix, shadow_since, shadow_by) values ('', now(), 'x')",
            "delete from pgfence.rollout",
        ):
            with pytest.raises(psycopg.Error) as caught:
                outsider.execute(statement)
            assert caught.value.sqlstate in ("PF204", "42501")
    finally:
        superuser.execute("revoke pg_write_all_data from outsider")
