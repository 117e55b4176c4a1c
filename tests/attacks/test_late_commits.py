"""However a client words its COMMIT, and whatever it does before it, a late one is noticed (R19).

The look at COMMIT has a short cut for the usual words. Each way here is tried after the lease has
ended and must fail; each is tried in time as well, as the control, and must succeed.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.guarded import refused, run
from tests.support import Database, Keys, wait_until
from tests.workers import (
    Worker,
    begin_before_the_end,
    end_lease,
    fence_row,
    lease_is_over,
    no_timeouts,
)

pytestmark = pytest.mark.rule("R19")
RESOURCE = "invoice-batch/2026-07-19"


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


def in_time_and_late(
    worker: Worker, begin: Callable[[Any], object], commit: Callable[[], object]
) -> None:
    """Admitted by `begin(held)`, committed by `commit()`: in time it stands, late it fails."""
    held = worker.acquire(RESOURCE, ttl_ms=3_600_000)
    worker.conn.execute("begin")
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    begin(held)
    commit()
    settle(worker)
    assert fence_row(worker.database, RESOURCE).last_segment == 1

    def steps() -> None:
        assert worker.apply(held.token, 2).verdict == "ACCEPTED"
        no_timeouts(worker)
        begin(held)

    begin_before_the_end(worker, held.lease, steps)
    wait_until(lambda: lease_is_over(worker.database, held.lease), "the lease is over")
    with refused("PF203"):
        commit()
    settle(worker)
    assert fence_row(worker.database, RESOURCE).last_segment == 1


def settle(worker: Worker) -> None:
    """Leave whatever transaction is open, and commit what was prepared."""
    if worker.conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        worker.conn.execute("rollback")
    name = worker.database.name
    if worker.call("select 1 from pg_prepared_xacts where gid = %s", [name]):
        run(worker.conn, f"commit prepared '{name}'")


WORDS = [
    "commit",
    "COMMIT;",
    "Commit",
    " commit",
    "commit --",
    "/* COMMIT */ commit",
    "commit work",
    "commit transaction",
    "commit and no chain",
    "commit and chain",
    "end",
    "END;",
    "select 1; commit",
    "commit; select 1",
    "set constraints all immediate; commit",
    "set constraints all immediate; set constraints all immediate; end",
    "prepare transaction '{name}'",
    "set constraints all immediate; prepare transaction '{name}'",
]


@pytest.mark.parametrize(
    ("words", "protocol"),
    [(words, "simple") for words in WORDS]
    + [(words, "extended") for words in WORDS if "; " not in words],
)
def test_r19_late_commit_in_any_words_fails(worker: Worker, words: str, protocol: str) -> None:
    statement = words.format(name=worker.database.name)
    in_time_and_late(
        worker,
        lambda held: None,
        lambda: worker.conn.execute(statement.encode(), prepare=protocol == "extended"),
    )


IMMEDIATE = (
    "create function pg_temp.f() returns {} language plpgsql as"
    " $$ begin set constraints all immediate; return null; end $$"
)
OWN_TRIGGER = (
    "create temp table if not exists t (x integer)",
    IMMEDIATE.format("trigger").replace("create function", "create or replace function"),
    "drop trigger if exists own on t",
    "create constraint trigger own after insert on t deferrable initially deferred"
    " for each row execute function pg_temp.f()",
    "insert into t values (1), (2)",
)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(OWN_TRIGGER, id="a deferred trigger of one's own makes constraints immediate"),
        pytest.param(
            ("set constraints all immediate", *OWN_TRIGGER), id="the same, and immediate before"
        ),
        pytest.param((*OWN_TRIGGER, "set constraints all immediate"), id="and immediate after"),
        pytest.param(
            (
                IMMEDIATE.format("integer").replace("create", "create or replace", 1),
                "close all",
                "declare c cursor with hold for select pg_temp.f()",
            ),
            id="a cursor that is filled at COMMIT makes constraints immediate",
        ),
        pytest.param(
            ("savepoint a", "set constraints all immediate", "rollback to a", "savepoint b"),
            id="savepoints",
        ),
        pytest.param(("deallocate all", "discard plans"), id="plans are discarded"),
        pytest.param(("set local plan_cache_mode = force_custom_plan",), id="custom plans"),
        pytest.param(
            ("set local search_path = pg_temp", "set role pgfence_app"), id="role and path"
        ),
    ],
)
def test_r19_late_commit_after_any_preparation_fails(
    worker: Worker, before: tuple[str, ...]
) -> None:
    def begin(held: Any) -> None:
        for statement in before:
            run(worker.conn, statement)

    in_time_and_late(worker, begin, lambda: worker.conn.execute("commit"))
    worker.conn.execute("reset role")


def call_fast_path(conn: psycopg.Connection[Any], function: str) -> None:
    """Call a function without arguments by the protocol's FunctionCall, which is no query."""
    ((oid,),) = conn.execute("select %s::regprocedure::oid", [function]).fetchall()
    message = struct.pack("!Ihhh", oid, 0, 0, 0)
    os.write(conn.fileno(), b"F" + struct.pack("!I", len(message) + 4) + message)
    answer = b""
    while b"Z\0\0\0\5" not in answer:
        select.select([conn.fileno()], [], [])
        more = os.read(conn.fileno(), 65536)
        if not more:  # the server has ended the session
            conn.close()
            raise psycopg.OperationalError("the session was ended")
        answer += more
    assert answer.startswith(b"V"), answer


def test_r19_function_call_message_does_not_pass_for_commit(worker: Worker) -> None:
    """No query is set while the server runs it, as when an implicit transaction ends."""
    for statement in (
        IMMEDIATE.format("integer"),
        "create function pg_temp.g() returns integer language sql as 'select pg_temp.f()'",
    ):
        run(worker.conn, statement)

    def begin(held: Any) -> None:
        call_fast_path(worker.conn, "pg_temp.f()")
        call_fast_path(worker.conn, "pg_temp.g()")

    in_time_and_late(worker, begin, lambda: worker.conn.execute("commit"))


def send_in_one_pipeline(conn: psycopg.Connection[Any], *statements: str) -> None:
    """One implicit transaction, which the Sync message commits."""
    conn.pgconn.enter_pipeline_mode()
    for statement in statements:
        conn.pgconn.send_query_params(statement.encode(), None)
    conn.pgconn.pipeline_sync()
    conn.pgconn.flush()
    errors: list[psycopg.Error] = []
    while True:
        result = conn.pgconn.get_result()
        if result is None and conn.closed:  # the server has ended the session
            raise errors[0] if errors else psycopg.OperationalError("the session was ended")
        if result is None:
            continue
        if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            errors.append(psycopg.errors.error_from_result(result))
        elif result.status == psycopg.pq.ExecStatus.PIPELINE_SYNC:
            break
    conn.pgconn.exit_pipeline_mode()
    if errors:
        raise errors[0]


IN_ONE_CALL = """
    declare
        v_verdict text;
        v_ends timestamptz;
    begin
        select verdict into v_verdict from pgfence.fenced_apply('{token}', 1, 'p');
        if v_verdict <> 'ACCEPTED' then
            raise exception 'too late' using errcode = 'PFX01';
        end if;
        {before}
        perform set_config('transaction_timeout', '0', true)
          from pg_settings where name = 'transaction_timeout';
        select lease_ends_at into v_ends from pgfence_registry.look('{lease}');
        while clock_timestamp() <= v_ends loop perform pg_sleep(0.01); end loop;
        {commit}
    end
"""


COMMITS = ("commit;", "commit and chain;", "", "set constraints all immediate; commit;")


@pytest.mark.parametrize("before", ["", "set constraints all immediate;"])
@pytest.mark.parametrize(
    ("kind", "commit"),
    [(kind, commit) for kind in ("do", "procedure") for commit in COMMITS] + [("pipeline", "")],
)
def test_r19_late_commit_inside_a_call_fails(
    worker: Worker, kind: str, before: str, commit: str
) -> None:
    held = worker.acquire(RESOURCE)
    body = IN_ONE_CALL.format(token=held.token, lease=held.lease, before=before, commit=commit)

    def perform() -> None:
        if kind == "procedure":
            run(
                worker.conn,
                f"create or replace procedure pg_temp.p() language plpgsql as $$ {body} $$",
            )
            run(worker.conn, "call pg_temp.p()")
        elif kind == "do":
            run(worker.conn, f"do $$ {body} $$")
        else:
            send_in_one_pipeline(worker.conn, f"do $$ {body} $$", "select 1")

    for seconds in (0.3, 1, 3, 10, 30):
        end_lease(worker.database, held.lease, seconds)
        with pytest.raises(psycopg.Error) as caught:
            perform()
        if worker.conn.closed:  # the server's timer was quicker than the call that stops it
            worker.conn = worker.database.connect("worker_a")
        elif caught.value.sqlstate != "PFX01":
            break
    assert caught.value.sqlstate == "PF203", caught.value
    assert fence_row(worker.database, RESOURCE).highest_fence == 0
