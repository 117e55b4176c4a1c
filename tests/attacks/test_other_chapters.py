"""More chapters of PostgreSQL's documentation: owned objects, snapshots, time-outs, names, COPY."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tests.guarded import BATCH, DAY, NEXT_BATCH, Writer, make_table, protect, refused, run
from tests.support import Database, Keys
from tests.workers import Worker, fence_row


@pytest.fixture
def table(owner: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """`invoices`, protected, and `open_invoices`, with rows 1 to 3 of DAY; who owns them."""
    for name in ("invoices", "open_invoices"):
        make_table(owner, name, "plain")
        run(owner, f"insert into {name} select i, '{DAY}', 10 from generate_series(1, 3) as i")
    protect(owner, "invoices")
    return owner


def amounts(owner: psycopg.Connection[Any]) -> list[int]:
    return [int(amount) for (amount,) in run(owner, "select amount from invoices order by id")]


LOOK_ALIKES = [
    BATCH.replace("/", "%2F"),
    BATCH.replace("/", "//"),
    BATCH.replace("/", "/./"),
    BATCH + "/",
    BATCH.capitalize(),
    BATCH.replace("-07-", "-7-"),
    BATCH.replace("-07-", "07"),
    BATCH + "T00:00:00",
    "invoice-batch/%",
    "invoice-batch/*",
    "invoice-batch/{batch_date}",
    "*",
]
NO_NAMES = [BATCH + " ", BATCH + "\n", "\ufeff" + BATCH, BATCH.replace("9", "\uff19"),
            BATCH.replace("-", "\u2011"), BATCH.replace("i", "i\u0307")]  # fmt: skip


@pytest.mark.rule("R23")
@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_r23_name_that_looks_like_another_ones_admits_to_nothing_of_it(
    database: Database, keys: Keys, table: psycopg.Connection[Any], name: str
) -> None:
    attacker = Writer.login(database, keys, "worker_b")
    with refused(), attacker.admitted(name) as conn:
        run(conn, "update invoices set amount = 0")
    with attacker.admitted(BATCH) as conn:  # control: the name itself does
        run(conn, "update invoices set amount = 1")
    assert amounts(table) == [1, 1, 1]


@pytest.mark.rule("R34")
@pytest.mark.parametrize("name", NO_NAMES, ids=ascii)
def test_r34_name_with_white_space_or_other_letters_is_not_granted(
    database: Database, keys: Keys, name: str
) -> None:
    worker = Worker.login(database, keys, "worker_b")
    request = "select * from pgfence_registry.request('r', %s, 'settle', %s, 1000)"
    root = "sha256:" + "0" * 64
    with refused("PF301"):
        worker.conn.execute(request, [name, root])
    assert worker.conn.execute(request, [BATCH, root]).rowcount == 1  # control


@pytest.mark.rule("R26")
@pytest.mark.parametrize(
    "statement",
    [
        "drop owned by pgfence_app",
        "drop owned by pgfence_app cascade",
        "reassign owned by pgfence_app to worker_b",
        "revoke all on all functions in schema pgfence from pgfence_app cascade",
        "revoke all on invoices from pgfence_app cascade",
        "alter default privileges for role pgfence_app revoke all on functions from public",
    ],
)
def test_r26_member_of_the_group_takes_no_right_from_the_others(
    database: Database,
    table: psycopg.Connection[Any],
    writer: Writer,
    statement: str,
) -> None:
    attacker = database.connect("worker_b")
    for role in ("worker_b", "pgfence_app"):
        run(attacker, f"set role {role}")
        with suppress(psycopg.errors.InsufficientPrivilege):
            run(attacker, statement)  # else PostgreSQL warns, and does nothing
    with writer.admitted(BATCH) as conn:
        run(conn, "update invoices set amount = 1")
    assert amounts(table) == [1, 1, 1]
    if statement.startswith(("drop", "revoke all on invoices")):  # control
        run(database.connect(), statement)
        with refused("42501"), writer.admitted(BATCH) as conn:
            run(conn, "update invoices set amount = 2")


@pytest.mark.rule("R52")
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_r52_snapshot_that_another_session_kept_shows_no_lease_that_is_over(
    database: Database, keys: Keys, writer: Writer, isolation: str
) -> None:
    """A transaction may begin with a snapshot that is older than itself."""
    worker, old = writer.worker, database.connect("worker_a")
    held = worker.acquire(BATCH)
    run(old, f"begin isolation level {isolation}")
    ((snapshot,),) = run(old, "select pg_export_snapshot()").fetchall()
    for over in (False, True):  # control: as long as the lease runs, it is admitted
        if over:
            assert worker.release(held.lease).state == "RELEASED"
            assert Worker.login(database, keys, "worker_b").acquire(BATCH).state == "HELD"
        run(worker.conn, f"begin isolation level {isolation}")
        run(worker.conn, f"set transaction snapshot '{snapshot}'")
        assert worker.look(held.lease).state == "HELD"
        if over:
            with refused("40001"):
                worker.apply(held.token, 1)
        else:
            assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        run(worker.conn, "rollback")
    assert fence_row(database, BATCH).highest_fence == 0


@pytest.mark.rule("R15")
def test_r15_call_that_is_cancelled_anywhere_leaves_all_or_nothing(
    database: Database, table: psycopg.Connection[Any], writer: Writer
) -> None:
    """statement_timeout ends it wherever it is by then; the machine's speed says where that is."""
    worker, token = writer.worker, writer.worker.acquire(BATCH).token
    writer.tokens[BATCH] = token
    for attempt in range(60):
        segment = fence_row(database, BATCH).last_segment + 1
        run(worker.conn, "begin")
        run(worker.conn, f"set local statement_timeout = {attempt // 4 + 1}")
        try:
            verdict = worker.apply(token, segment)
            assert verdict.verdict == "ACCEPTED"
            run(worker.conn, f"update invoices set amount = {segment}")
            run(worker.conn, "commit")
        except psycopg.errors.QueryCanceled:
            run(worker.conn, "rollback")
        last = fence_row(database, BATCH).last_segment
        assert last in (segment - 1, segment)
        assert amounts(table) == [last or 10] * 3
    with writer.admitted(BATCH) as conn:
        run(conn, f"update invoices set amount = {last + 1}")
    receipts = run(database.connect(), "select count(*) from pgfence.receipts").fetchone()
    assert receipts == (last + 1,)


TOKENS = {
    "a megabyte": "v4.public." + "A" * 1_000_000 + ".e30",
    "dots": "." * 100_000,
    "brackets": "v4.public." + "W1tb" * 1000 + ".e30",
    "other letters": "v4.publi\u0441.AAAA.e30",
    "full width": "\uff56\uff14.public.AAAA.e30",
    "combining": "v4.public.A\u0301AAA.e30",
    "a format": "v4.public.%s.%n",
    "SQL": "v4.public.');select 1--.e30",
}


@pytest.mark.rule("R5")
@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
def test_r5_token_of_unusual_size_or_letters_is_malformed(writer: Writer, token: str) -> None:
    for call in ("fenced_apply(%s, 1, 'p')", "advance(%s)"):
        found = writer.worker.call(f"select verdict from pgfence.{call}", [token])
        assert found.verdict == "MALFORMED"
    shadow = writer.database.connect("dba")
    run(shadow, "set role pgfence_owner")
    run(shadow, "select pgfence.shadow('')")  # there the claim is read as well
    assert writer.worker.apply(token, 1).verdict == "MALFORMED"


@pytest.mark.rule("R12")
def test_r12_text_that_only_looks_the_same_is_another_payload(writer: Writer) -> None:
    token = writer.worker.acquire(BATCH).token
    assert writer.worker.apply(token, 1, "\u00e9").verdict == "ACCEPTED"
    assert writer.worker.apply(token, 1, "\u00e9").verdict == "REPLAYED"
    for other in ("e\u0301", "\u00c9", "\u00e9 ", "\\u00e9", ""):
        assert writer.worker.apply(token, 1, other).verdict == "PAYLOAD_CONFLICT"
    assert writer.worker.apply(token, 2**63 - 1, "\u00e9").verdict == "SEGMENT_GAP"


@pytest.mark.rule("R23")
def test_r23_copy_that_ignores_bad_rows_does_not_ignore_the_guard(
    table: psycopg.Connection[Any], writer: Writer
) -> None:
    if table.info.server_version < 170000:
        pytest.skip("ON_ERROR came with PostgreSQL 17")

    def copy(conn: psycopg.Connection[Any], name: str) -> None:
        with conn.cursor().copy(f"copy {name} from stdin (on_error ignore)".encode()) as data:
            data.write(f"20\tno date\t1\n21\t{DAY}\t1\n")

    copy(writer.conn, "open_invoices")
    with refused(), writer.admitted(NEXT_BATCH) as conn:
        copy(conn, "invoices")
    with writer.admitted(BATCH) as conn:
        copy(conn, "invoices")
    assert re.fullmatch("10 10 10 1", " ".join(map(str, amounts(table))))
