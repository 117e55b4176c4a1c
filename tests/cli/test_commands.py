"""Each command: what it does, what it says in JSON, and how it fails."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import typer

from pgfence import install, tokens
from pgfence.audit import checks
from pgfence.audit.doctor import Check, Severity
from pgfence.cli import app
from pgfence.cli.output import told
from pgfence.model.signature import key_id, raw_public_key
from tests import support
from tests.cli.conftest import Pgfence
from tests.cli.documents import ROOT, blocks
from tests.support import Database, Keys, issue
from tests.workers import Worker, age_receipts, as_owner

BATCH = "invoice-batch/2026-07-19"
MANUAL = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def apply(database: Database, token: str, segment: int, payload: str = "{}") -> str:
    """The verdict on one segment of worker_a."""
    row = (
        database.connect("worker_a")
        .execute("select verdict from pgfence.fenced_apply(%s, %s, %s)", [token, segment, payload])
        .fetchone()
    )
    assert row is not None
    return str(row[0])


# migrate


def test_migrate_installs_and_does_nothing_the_second_time(
    pgfence: Pgfence, empty_database: Database
) -> None:
    assert pgfence("migrate", "--json", on=empty_database).document == {
        "before": None,
        "after": install.head(),
    }
    again = pgfence("migrate", on=empty_database)
    assert (again.exit_code, again.out) == (0, f"pgfence is at {install.head()}: nothing to do\n")


def test_migrate_sql_prints_the_script_and_connects_to_nothing(pgfence: Pgfence) -> None:
    assert pgfence("migrate", "--sql").out == install.migrate_sql()
    document = pgfence("migrate", "--sql", "--json").document
    assert document == {"version": install.head(), "sql": install.migrate_sql()}


# keys


def test_keys_new_makes_a_private_file_and_overwrites_none(
    pgfence: Pgfence, tmp_path: Path
) -> None:
    path = tmp_path / "new.key"
    document = pgfence("keys", "new", path, "--json").document
    public_key = raw_public_key(tokens.load_key(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert document == {
        "path": str(path),
        "kid": key_id(public_key),
        "public_key": public_key.hex(),
    }
    again = pgfence("keys", "new", path)
    assert again.exit_code == 4
    assert again.err.startswith(f"pgfence: {path} exists; a key is never overwritten\nnext: ")


# trust


@pytest.mark.rule("R31")
def test_trust_init_makes_missing_keys_and_installs_the_first_bundle_once(
    pgfence: Pgfence, empty_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pgfence("migrate", on=empty_database).exit_code == 0
    assert pgfence("keys", "new", "mine.key").exit_code == 0
    document = pgfence(
        "trust", "init", "--audience", "billing", "--grant-key", "mine.key", "--json",
        on=empty_database,
    ).document  # fmt: skip
    assert (document["version"], document["audience"]) == (1, "billing")
    assert {p: (k["path"], k["made"]) for p, k in document["keys"].items()} == {
        "root": ("root.key", True),
        "grant": ("mine.key", False),
        "status": ("status.key", True),
    }
    kid = key_id(raw_public_key(tokens.load_key(Path("mine.key"))))
    assert document["keys"]["grant"]["kid"] == kid
    (digest,) = (
        empty_database.connect("dba")
        .execute("select digest from pgfence.trust_bundle()")
        .fetchall()
    )
    assert digest == (document["digest"],)

    again = pgfence("trust", "init", "--root-key", "other.key", on=empty_database)
    assert again.exit_code == 4
    assert "has trust bundle 1: nothing was changed" in again.err
    assert not Path("other.key").exists()


def test_trust_init_says_what_to_keep_offline(
    pgfence: Pgfence, empty_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pgfence("migrate", on=empty_database)
    said = pgfence("trust", "init", on=empty_database)
    assert said.exit_code == 0, said.err
    assert f"for audience {empty_database.name}\n" in said.out
    assert "Take root.key and status.key off this machine" in said.out


def test_trust_init_wants_three_keys_and_an_audience_that_is_an_id(
    pgfence: Pgfence, empty_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pgfence("migrate", on=empty_database)
    one_key = pgfence("trust", "init", "--root-key", "a", "--grant-key", "./a", on=empty_database)
    assert one_key.exit_code == 2
    no_id = pgfence("trust", "init", "--audience", "two words", on=empty_database)
    assert no_id.exit_code == 2
    assert list(tmp_path.iterdir()) == []


# registry


@pytest.mark.rule("R53")
def test_registry_serve_signs_until_sigterm(
    database: Database, keys: Keys, tmp_path: Path, pgfence: Pgfence
) -> None:
    key = tmp_path / "grant.key"
    tokens.write_key(key, keys.grant)
    process = subprocess.Popen(
        [sys.executable, "-c", "from pgfence.cli import main; main()",
         "registry", "serve", "--key", str(key)],
        cwd=ROOT,
        env=os.environ | {"PGFENCE_DSN": database.dsn("registry")},
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    events = (line.split(" ", 1)[1] for line in process.stdout)
    assert next(events).startswith(f"started kid={key_id(raw_public_key(keys.grant))}")
    assert next(events).startswith("connected ")
    request = ["monday", BATCH, "settle", f"sha256:{'0' * 64}", 30_000]
    database.connect("worker_a").execute(
        "select pgfence_registry.request(%s, %s, %s, %s, %s)", request
    )
    signed = next(events)
    assert signed.startswith(f"signed resource={BATCH} owner=worker-a lease=lease-")
    process.send_signal(signal.SIGTERM)
    assert [line.strip() for line in events] == ["stopped"]
    assert process.wait() == 0
    process.stdout.close()


def test_registry_serve_refuses_a_key_that_others_may_read(
    pgfence: Pgfence, database: Database, keys: Keys, tmp_path: Path
) -> None:
    key = tmp_path / "grant.key"
    tokens.write_key(key, keys.grant)
    key.chmod(0o640)
    said = pgfence("registry", "serve", "--key", key, on=database, role="registry")
    assert said.exit_code == 4
    assert "has mode 0640: others may use it" in said.err


# workload


@pytest.mark.rule("R6")
def test_workload_add_list_and_remove(pgfence: Pgfence, database: Database) -> None:
    added = pgfence("workload", "add", "spiffe://x/y", "--role", "outsider", "--json", on=database)
    assert added.document == {
        "workload": "spiffe://x/y",
        "role": "outsider",
        "pattern": None,
        "system_user": None,
    }
    listed = pgfence("workload", "list", "--json", on=database, role="auditor").document
    assert [(w["workload"], w["role"], w["added_by"]) for w in listed] == [
        ("spiffe://x/y", "outsider", "dba"),
        ("worker-a", "worker_a", "dba"),
        ("worker-b", "worker_b", "dba"),
    ]
    assert "spiffe://x/y" in pgfence("workload", "list", on=database).out
    removed = pgfence("workload", "remove", "outsider", "--json", on=database)
    assert removed.document == {"role": "outsider", "pattern": None, "system_user": None}
    again = pgfence("workload", "remove", "outsider", on=database)
    assert (again.exit_code, again.err.splitlines()[0]) == (
        4,
        "pgfence: role outsider acts for no workload",
    )


@pytest.mark.rule("R6")
def test_workload_takes_a_pattern_of_roles(pgfence: Pgfence, database: Database) -> None:
    added = pgfence("workload", "add", "settlement", "--pattern", "settler-*", on=database)
    assert added.out == "every role settler-* acts for workload settlement\n"
    listed = pgfence("workload", "list", "--json", on=database, role="auditor").document
    assert [(w["workload"], w["role"], w["pattern"], w["system_user"]) for w in listed] == [
        ("settlement", None, "settler-*", None),
        ("worker-a", "worker_a", None, None),
        ("worker-b", "worker_b", None, None),
    ]
    assert pgfence("workload", "remove", "settler-", on=database).exit_code == 4
    removed = pgfence("workload", "remove", "--pattern", "settler-*", on=database)
    assert removed.out == "pattern settler-* acts for no workload any more\n"


@pytest.mark.rule("R6")
def test_workload_takes_a_role_with_its_system_user(pgfence: Pgfence, database: Database) -> None:
    one = ["--role", "outsider", "--system-user", "cert:CN=one"]
    added = pgfence("workload", "add", "settlement", *one, on=database)
    if database.connect().info.server_version < 160000:
        assert added.err.startswith("pgfence: this PostgreSQL has no SYSTEM_USER\n")
        return
    assert added.out == (
        "role outsider authenticated as cert:CN=one acts for workload settlement\n"
    )
    removed = pgfence("workload", "remove", "outsider", *one[2:], "--json", on=database)
    assert removed.document == {"role": "outsider", "pattern": None, "system_user": "cert:CN=one"}


@pytest.mark.parametrize(
    "words",
    [
        ["add", "w"],
        ["add", "w", "--role", "a", "--pattern", "abc*"],
        ["add", "w", "--pattern", "abc*", "--system-user", "cert:x"],
        ["remove"],
        ["remove", "a", "--pattern", "abc*"],
    ],
)
def test_workload_with_other_words_is_a_usage_error(pgfence: Pgfence, words: list[str]) -> None:
    assert pgfence("workload", *words).exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["policy", "set", "x", "--largest-ttl", "nan"],
        ["policy", "set", "x", "--largest-ttl", "inf"],
        ["policy", "set", "x", "--largest-step", 2**63],
        ["policy", "set", "x", "--generation", 2**63],
        ["receipts", "prune", "--older-than", 10**9],
        ["reconcile", "--watch", "--every", "inf"],
        ["resume", "x", "--above", 2**63],
        ["restored", "--above", 2**63],
        ["registry", "here", "--above", 2**63],
        ["registry", "place", "x", "billing", "--above", 2**63],
        ["answer", "x", f"sha256:{'0' * 64}", 2**63, "APPLIED", "--evidence", "seen"],
    ],
)
def test_a_number_that_cannot_be_meant_is_a_usage_error(
    pgfence: Pgfence, database: Database, words: list[str]
) -> None:
    said = pgfence(*words, on=database)
    assert said.exit_code == 2, said
    assert "range" in said.err or "less than" in said.err or "greater than" in said.err


def test_an_output_that_is_full_is_an_error_and_no_traceback(database: Database) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-c", "from pgfence.cli import main; main()", "protected"],
            env=os.environ | {"PGFENCE_DSN": database.dsn("dba")},
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 4
    assert ended.stderr.startswith("pgfence: ")
    assert "No space left" in ended.stderr
    assert "Traceback" not in ended.stderr


# protect


@pytest.mark.rule("R23")
def test_protect_guards_a_table(pgfence: Pgfence, database: Database) -> None:
    owner = database.connect("billing_owner")
    owner.execute("create table invoices (batch_date date)")
    said = pgfence(
        "protect", "invoices", "invoice-batch/{batch_date}", "--json",
        on=database, role="billing_owner",
    )  # fmt: skip
    assert said.document == {"table": "public.invoices", "template": "invoice-batch/{batch_date}"}
    with pytest.raises(psycopg.Error) as refused:
        owner.execute("insert into invoices values ('2026-07-19')")
    assert refused.value.sqlstate == "PF201"


def test_protect_says_which_table_or_column_is_missing(
    pgfence: Pgfence, database: Database
) -> None:
    database.connect("billing_owner").execute("create table invoices (batch_date date)")
    no_table = pgfence("protect", "invoice", "x/{a}", on=database, role="billing_owner")
    assert (no_table.exit_code, no_table.err) == (
        4,
        'pgfence: PostgreSQL: relation "invoice" does not exist\n',
    )
    no_column = pgfence("protect", "invoices", "x/{a}", on=database, role="billing_owner")
    assert (no_column.exit_code, no_column.err.splitlines()[0]) == (
        4,
        'pgfence: public.invoices has no column "a"',
    )
    assert no_column.err.splitlines()[1].startswith("next: ")


# unprotect, protected


@pytest.mark.rule("R26")
def test_unprotect_takes_the_guard_off(pgfence: Pgfence, database: Database) -> None:
    owner = database.connect("billing_owner")
    owner.execute("create table invoices (batch_date date)")
    owner.execute("select pgfence.protect('invoices', 'invoice-batch/{batch_date}')")
    stranger = pgfence("unprotect", "public.invoices", on=database, role="worker_a")
    assert (stranger.exit_code, stranger.err.splitlines()[-1]) == (
        4,
        "next: This takes the table's owner, in pgfence_app.",
    )
    said = pgfence("unprotect", "invoices", "--json", on=database, role="billing_owner")
    assert said.document == {"table": "public.invoices"}
    owner.execute("insert into invoices values ('2026-07-19')")
    again = pgfence("unprotect", "invoices", on=database, role="billing_owner")
    assert (again.exit_code, again.err.splitlines()[0]) == (
        4,
        "pgfence: public.invoices is not protected",
    )


@pytest.mark.rule("R26")
def test_unprotect_takes_the_oid_of_a_dropped_table(pgfence: Pgfence, database: Database) -> None:
    owner = database.connect("billing_owner")
    owner.execute("create table invoices (batch_date date)")
    owner.execute("select pgfence.protect('invoices', 'invoice-batch/{batch_date}')")
    ((oid,),) = owner.execute("select 'invoices'::regclass::oid").fetchall()
    owner.execute("drop table invoices")
    said = pgfence("unprotect", oid, on=database, role="dba")
    assert (said.err, said.out) == ("", f"{oid} is not protected any more\n")


@pytest.mark.rule("R25")
def test_protected_lists_the_tables_and_exits_with_1_if_a_guard_is_not_whole(
    pgfence: Pgfence, database: Database
) -> None:
    nothing = pgfence("protected", on=database, role="auditor")
    assert (nothing.exit_code, nothing.out) == (0, "no table is protected\n")
    owner = database.connect("billing_owner")
    for table in ('"Odd name"', "invoices"):
        owner.execute(f"create table {table} (batch_date date) partition by list (batch_date)")
        owner.execute(f"create table p_{len(table)} partition of {table} default")
        owner.execute("select pgfence.protect(%s, 'invoice-batch/{batch_date}')", [table])
    whole = pgfence("protected", "--json", on=database, role="worker_a")
    assert whole.exit_code == 0
    assert whole.document == [
        {"table": table, "template": "invoice-batch/{batch_date}", "gaps": []}
        for table in ('public."Odd name"', "public.invoices")
    ]
    assert "| whole |" in pgfence("protected", on=database, role="auditor").out
    owner.execute("alter table p_8 disable trigger pgfence_guard_row")
    broken = pgfence("protected", "--json", on=database, role="auditor")
    assert broken.exit_code == 1
    assert broken.document[1]["gaps"] == [
        {
            "relation": "public.p_8",
            "problem": "a trigger of the guard is missing, disabled, not ENABLE ALWAYS, or was"
            " changed",
        }
    ]
    assert "public.p_8 a trigger of" in pgfence("protected", on=database, role="auditor").out


# receipts


@pytest.mark.rule("R22")
def test_receipts_shows_the_segments_of_a_resource(pgfence: Pgfence, database: Database) -> None:
    grant = issue(database, "worker_a", BATCH)
    assert [apply(database, grant.token, segment) for segment in (1, 2)] == ["ACCEPTED"] * 2
    said = pgfence("receipts", BATCH, "--json", on=database, role="auditor").document
    assert [(r["resource"], r["fence_token"], r["segment_seq"]) for r in said] == [
        (BATCH, 1, 1),
        (BATCH, 1, 2),
    ]
    assert {(r["owner"], r["session_role"], r["operation_root"]) for r in said} == {
        ("worker-a", "worker_a", grant.operation_root)
    }
    table = pgfence("receipts", BATCH, on=database, role="auditor").out
    assert said[1]["digest"][:16] in table
    nothing = pgfence("receipts", "other", on=database, role="auditor")
    assert (nothing.exit_code, nothing.out) == (0, "other has no receipts\n")


def test_receipts_are_shown_whatever_date_style_a_dba_has_set(
    pgfence: Pgfence, database: Database
) -> None:
    assert apply(database, issue(database, "worker_a", BATCH).token, 1) == "ACCEPTED"
    support.set_for_roles(database, "datestyle", "German")
    (said,) = pgfence("receipts", BATCH, "--json", on=database, role="auditor").document
    assert re.match(r"\d{4}-\d{2}-\d{2}T", said["accepted_at"])


@pytest.mark.rule("R22")
def test_receipts_verify_finds_an_edited_receipt_and_exits_with_1(
    pgfence: Pgfence, database: Database
) -> None:
    for resource in ("a", "b"):
        grant = issue(database, "worker_a", resource)
        assert apply(database, grant.token, 1) == "ACCEPTED"
    whole = pgfence("receipts", "verify", on=database, role="auditor")
    assert (whole.exit_code, whole.out) == (0, "2 of 2 chains are whole, 2 receipts\n")

    as_owner(database, "update pgfence.receipts set session_role = 'x' where resource = 'b'")
    unknown = pgfence("receipts", "verify", "nobody-wrote", on=database, role="auditor")
    assert (unknown.exit_code, unknown.out) == (0, "nobody-wrote has no receipts\n")
    broken = pgfence("receipts", "verify", on=database, role="auditor")
    assert broken.exit_code == 1
    assert broken.out == (
        "b: BROKEN at fence 1, segment 1: its contents do not give its digest\n"
        "1 of 2 chains are whole, 1 receipts\n"
    )
    (one,) = pgfence("receipts", "verify", "b", "--json", on=database, role="worker_b").document
    assert one == {
        "resource": "b",
        "receipts": 0,
        "pruned": 0,
        "ok": False,
        "first_bad_fence": 1,
        "first_bad_segment": 1,
        "problem": "its contents do not give its digest",
    }
    assert pgfence("receipts", "verify", "a", on=database, role="auditor").exit_code == 0


@pytest.mark.rule("R22")
def test_r22_receipts_verify_names_a_resource_whose_fence_is_gone(
    pgfence: Pgfence, database: Database, keys: Keys
) -> None:
    worker = Worker.login(database, keys, "worker_a")
    gone = {
        "a": "fences",
        "b": "fences, operations, pruned_stretches",
        "c": "fences, receipts, pruned_stretches",
        "d": "fences, receipts, operations",
    }
    for resource in (*gone, "whole"):
        for _ in range(2):
            held = worker.acquire(resource)
            assert worker.apply(held.token, 1).verdict == "ACCEPTED"
            worker.release(held.lease)
        age_receipts(database, resource)
        pruned = "select receipts from pgfence.prune_receipts(%s, '1 hour')"
        assert Worker.login(database, keys, "dba").call(pruned, [resource]).receipts == 1
    delete_without_a_trace(database, gone)

    said = pgfence("receipts", "verify", on=database, role="auditor")
    problem = dict.fromkeys(gone, "BROKEN: its row of pgfence.fences is gone")
    problem["b"] = "BROKEN at fence 2, segment 1: it does not follow the receipt before it"
    assert (said.exit_code, said.out) == (
        1,
        "".join(f"{name}: {problem[name]}\n" for name in gone)
        + "1 of 5 chains are whole, 1 receipts, 1 were pruned\n",
    )


@pytest.mark.rule("R22")
def test_r22_who_wrote_is_verified_too(
    pgfence: Pgfence, database: Database, old_receipts: None
) -> None:
    as_owner(database, "update pgfence.operations set owner = 'mallory' where resource = 'a'")
    said = pgfence("receipts", "verify", "a", on=database, role="auditor")
    problem = "pgfence.operations does not say of its grant what the grant said"
    assert said.exit_code == 1
    assert said.out.splitlines()[0] == f"a: BROKEN at fence 1, segment 1: {problem}"

    delete_without_a_trace(database, {"a": "operations"})
    assert pgfence("receipts", "verify", "a", on=database, role="auditor").out == said.out
    shown = pgfence("receipts", "a", "--json", on=database, role="auditor").document
    assert [r["owner"] for r in shown] == [None] * 6
    assert "worker_a" in pgfence("receipts", "a", on=database, role="auditor").out
    last = pgfence("status", "a", "--json", on=database, role="auditor").document
    assert last["audited"]["last_receipt"] == shown[-1]


def delete_without_a_trace(database: Database, gone: dict[str, str]) -> None:
    """What a superuser can: rows of these resources in these tables of pgfence."""
    with psycopg.connect(database.dsn()) as superuser:
        superuser.execute("set local session_replication_role = replica")
        for table in {table for tables in gone.values() for table in tables.split(", ")}:
            superuser.execute(f"alter table pgfence.{table} disable trigger user")
        for resource, tables in gone.items():
            for table in tables.split(", "):
                superuser.execute(f"delete from pgfence.{table} where resource = %s", [resource])


@pytest.fixture
def old_receipts(database: Database, keys: Keys) -> None:
    """Two resources with three fences each, all of them old; chain b is broken."""
    worker = Worker.login(database, keys, "worker_a")
    for resource in ("a", "b"):
        for _ in range(3):
            held = worker.acquire(resource)
            for segment in (1, 2):
                assert worker.apply(held.token, segment).verdict == "ACCEPTED"
            worker.release(held.lease)
        age_receipts(database, resource, hours=50)
    as_owner(database, "update pgfence.receipts set session_role = 'x' where resource = 'b'")


@pytest.mark.rule("R22")
@pytest.mark.usefixtures("old_receipts")
def test_receipts_prune_shows_what_would_go_and_changes_nothing(
    pgfence: Pgfence, database: Database
) -> None:
    dry = ["receipts", "prune", "--older-than", "2", "--dry-run"]
    table = pgfence(*dry, on=database, role="auditor")
    assert (table.exit_code, table.out.splitlines()[-1]) == (
        0,
        "8 receipts of 2 resources would be pruned",
    )
    (one,) = pgfence(*dry[:2], "a", *dry[2:], "--json", on=database, role="auditor").document
    assert one.pop("bytes") > 0
    assert one == {"resource": "a", "receipts": 4, "to_fence": 2, "to_segment": 2}
    later = pgfence("receipts", "prune", "--older-than", "3", "--dry-run", on=database)
    assert later.out == "0 receipts of 0 resources would be pruned\n"
    verified = pgfence("receipts", "verify", "a", on=database, role="auditor").out
    assert verified == "1 of 1 chains are whole, 6 receipts\n"


@pytest.mark.rule("R22")
@pytest.mark.usefixtures("old_receipts")
def test_receipts_prune_leaves_a_chain_that_verifies_and_exits_with_1_for_a_broken_one(
    pgfence: Pgfence, database: Database
) -> None:
    said = pgfence("receipts", "prune", "--older-than", "2", on=database)
    assert said.exit_code == 1
    assert said.out == (
        "b: not pruned: fence 1, segment 1: its contents do not give its digest\n"
        "4 receipts of 1 resources were pruned\n"
    )
    verified = pgfence("receipts", "verify", "a", on=database, role="auditor")
    assert (verified.exit_code, verified.out) == (
        0,
        "1 of 1 chains are whole, 2 receipts, 4 were pruned\n",
    )
    shown = pgfence("receipts", "a", on=database, role="auditor").out
    assert shown.startswith("4 receipts were pruned, from the beginning of the chain on\n")
    again = pgfence("receipts", "prune", "a", "--older-than", "2", "--json", on=database)
    assert (again.exit_code, again.document) == (0, [])


@pytest.mark.rule("R22")
@pytest.mark.usefixtures("old_receipts")
@pytest.mark.parametrize("only", [["a"], []])
def test_r22_receipts_prune_leaves_a_chain_that_is_broken_where_nothing_would_go(
    pgfence: Pgfence, database: Database, only: list[str]
) -> None:
    last = "resource = 'a' and (fence_token, segment_seq) = (3, 2)"
    as_owner(database, f"update pgfence.receipts set session_role = 'x' where {last}")
    said = pgfence("receipts", "prune", *only, "--older-than", "2", on=database)
    assert said.exit_code == 1
    problem = "not pruned: fence 3, segment 2: its contents do not give its digest"
    assert said.out.splitlines()[0] == f"a: {problem}"
    assert said.out.splitlines()[-1] == "0 receipts of 0 resources were pruned"
    page = blocks(ROOT / "docs" / "growth.md")
    (in_sql,) = (b.text.replace("90 d", "2 d") for b in page if "prune_receipts" in b.text)
    assert database.connect("dba").execute(in_sql.encode()).fetchall() == []
    assert database.connect().execute("select from pgfence.pruned_stretches").fetchall() == []


@pytest.mark.rule("R22")
@pytest.mark.usefixtures("old_receipts")
def test_receipts_prune_in_json(pgfence: Pgfence, database: Database) -> None:
    said = pgfence("receipts", "prune", "a", "--older-than", "1", "--json", on=database)
    assert said.document == [
        {
            "resource": "a",
            "receipts": 4,
            "from_fence": 1,
            "from_segment": 1,
            "to_fence": 2,
            "to_segment": 2,
            "problem": None,
        }
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["receipts"],
        ["receipts", "a", "b"],
        ["receipts", "prune"],
        ["receipts", "prune", "--older-than", "0"],
        ["receipts", "prune", "a", "b", "--older-than", "9"],
        ["receipts", "a", "--older-than", "9"],
        ["receipts", "verify", "--dry-run"],
    ],
)
def test_receipts_with_other_words_is_a_usage_error(pgfence: Pgfence, words: list[str]) -> None:
    assert pgfence(*words).exit_code == 2


@pytest.mark.parametrize(
    "words",
    [["receipts"], ["receipts", "verify"], ["receipts", "prune", "--older-than", "9"], ["status"]],
)
def test_r1_what_can_name_no_resource_is_a_usage_error(pgfence: Pgfence, words: list[str]) -> None:
    """It would be held by nobody, and its chain whole. Negative control: others are asked for."""
    words = [*words, "--dsn", "postgresql://nobody@127.0.0.1:1/nothing"]
    for resource in ("a b", "", 'a"b', "é", "x" * 256):
        said = pgfence(*words, resource)
        assert (said.exit_code, "Invalid value for RESOURCE" in said.err) == (2, True)
    assert pgfence(*words, BATCH).exit_code == 3


# refusals


@pytest.mark.rule("R12", "R18")
def test_refusals_shows_what_was_refused_and_the_quarantine(
    pgfence: Pgfence, database: Database
) -> None:
    nothing = pgfence("refusals", on=database, role="auditor")
    assert (nothing.exit_code, nothing.out) == (0, "nothing was refused\n")
    grant = issue(database, "worker_a", BATCH)
    assert apply(database, grant.token, 1, "one") == "ACCEPTED"
    assert apply(database, grant.token, 1, "two") == "PAYLOAD_CONFLICT"
    assert apply(database, "forged", 1) == "MALFORMED"
    assert apply(database, "forged", 2) == "MALFORMED"
    document = pgfence("refusals", "--json", on=database, role="auditor").document
    assert [
        (r["verdict"], r["resource"], r["authenticated"], r["occurrences"])
        for r in document["refusals"]
    ] == [("MALFORMED", None, False, 2), ("PAYLOAD_CONFLICT", BATCH, True, 1)]
    (quarantined,) = document["quarantine"]
    assert (quarantined["resource"], quarantined["segment_seq"]) == (BATCH, 1)
    said = pgfence("refusals", on=database, role="auditor").out
    assert quarantined["offered_digest"][:16] in said


# resume, restored


@pytest.mark.rule("R37")
def test_resume_says_why_it_was_paused_and_what_comes_next(
    pgfence: Pgfence, database: Database
) -> None:
    issue(database, "worker_a", BATCH)
    pause = "update pgfence.fences set paused_because = 'a test', issued_fence = 7"
    as_owner(database, pause)
    document = pgfence("resume", BATCH, "--reason", "mended", "--json", on=database).document
    assert document == {"resource": BATCH, "paused_because": "a test", "above": 7}
    as_owner(database, pause)
    assert pgfence("resume", BATCH, on=database).out == (
        f"{BATCH} goes on; it was paused: a test\nits next fence token lies above 7\n"
    )
    again = pgfence("resume", BATCH, on=database)
    assert (again.exit_code, again.err.splitlines()[0]) == (
        4,
        f"pgfence: resource '{BATCH}' is not paused",
    )
    assert issue(database, "worker_a", BATCH).fence_token == 8


@pytest.mark.rule("R17", "R37")
@pytest.mark.parametrize("command", [["resume"], ["registry", "resume"]])
def test_resume_raises_the_next_fence_above_a_known_one_and_never_lowers_it(
    pgfence: Pgfence, database: Database, command: list[str]
) -> None:
    issue(database, "worker_a", BATCH)
    pause = "update pgfence.fences set paused_because = 'a test'"
    for above, then in ((1000, 1000), (5, 1000)):
        as_owner(database, pause)
        document = pgfence(*command, BATCH, "--above", above, "--json", on=database).document
        assert document["above"] == then
    assert issue(database, "worker_a", BATCH).fence_token == 1001


# registry switch


@pytest.mark.rule("R37")
def test_registry_switch_says_who_chooses_from_now_on_and_where_fences_are(
    pgfence: Pgfence, database: Database
) -> None:
    issue(database, "worker_a", BATCH)
    switch = ["registry", "switch", "--to"]
    assert pgfence(*switch, "etcd", "--json", on=database).document == {
        "term": 2,
        "coordinator": "etcd",
        "before": "postgres",
        "above": 1,
    }
    assert pgfence(*switch, "postgres", "--reason", "enough", on=database).out == (
        "postgres says who may hold; before it was etcd\n"
        "every fence token that was issued so far lies at or below 1\n"
    )
    unknown = pgfence(*switch, "carrier-pigeon", on=database)
    assert (unknown.exit_code, unknown.err.splitlines()[0]) == (
        4,
        "pgfence: there is no coordinator 'carrier-pigeon': postgres, etcd, zookeeper, redis",
    )


@pytest.mark.rule("R40")
def test_registry_switch_takes_redis_only_where_the_registry_mints(
    pgfence: Pgfence, database: Database
) -> None:
    refused = pgfence("registry", "switch", "--to", "redis", on=database)
    assert refused.exit_code == 4
    assert "redis gives no token that rises" in refused.err
    assert "--registry-mints" in refused.err
    taken = pgfence("registry", "switch", "--to", "redis", "--registry-mints", on=database)
    assert (taken.exit_code, taken.err) == (0, "")


@pytest.mark.rule("R39")
def test_restored_ends_the_grants_of_before(pgfence: Pgfence, database: Database) -> None:
    grant = issue(database, "worker_a", BATCH)
    document = pgfence("restored", "--above", 2**50, "--json", on=database).document
    assert document["issuer_epoch"] == 2
    assert document["fence_base"] > 2**50
    assert apply(database, grant.token, 1) == "REVOKED_EPOCH"
    said = pgfence("restored", "--reason", "disk snapshot", on=database).out
    assert said.startswith("grants below issuer epoch 3 are refused from now on\nnew fence tokens")
    assert pgfence("restored", "--above", -1, on=database).exit_code == 2


# doctor


@pytest.mark.rule("R26")
def test_doctor_names_what_weakens_the_fence_and_exits_with_1(
    pgfence: Pgfence, database: Database
) -> None:
    owner = database.connect("billing_owner")
    owner.execute("create table invoices (batch_date date)")
    owner.execute("select pgfence.protect('invoices', 'invoice-batch/{batch_date}')")
    owner.execute("alter table invoices disable trigger pgfence_guard_update")
    said = pgfence("doctor", "--json", on=database, role="auditor")
    assert said.exit_code == 1
    (broken,) = (f for f in said.document["findings"] if f["code"] == "GUARD_NOT_WHOLE")
    mend = "select pgfence.protect('public.invoices', 'invoice-batch/{batch_date}');"
    assert broken == {
        "code": "GUARD_NOT_WHOLE",
        "severity": "error",
        "object": "public.invoices",
        "reason": "public.invoices: a trigger of the guard is missing, disabled, not ENABLE ALWAYS,"
        " or was changed",
        "sql": [mend],
        "run_as": "billing_owner",
        "step": None,
    }
    assert said.document["unseen"] == []
    text = pgfence("doctor", on=database, role="auditor").out
    assert f"  mend it as role billing_owner:\n    {mend}\n" in text
    assert text.splitlines()[-1] == (
        f"{len(said.document['findings'])} found, {said.document['checks']} checks made"
    )


@pytest.mark.rule("R26")
def test_doctor_says_what_the_role_may_not_see_and_exits_with_1(
    pgfence: Pgfence, database: Database
) -> None:
    said = pgfence("doctor", on=database, role="worker_a")
    assert said.exit_code == 1
    assert "not seen  TABLE_OWNER: permission denied for view workload_logins\n" in said.out
    assert "A role in pgfence_auditor sees everything.\n" in said.out


@pytest.mark.rule("R26")
@pytest.mark.parametrize(("severity", "exit_code"), [("note", 0), ("warning", 1), ("error", 1)])
def test_doctor_exits_with_0_where_there_are_notes_alone(
    pgfence: Pgfence,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    severity: str,
    exit_code: int,
) -> None:
    check = Check(
        "A_CODE",
        Severity(severity),
        "",
        "select 'it' as object",
        "{object} is odd",
        (),
        step="Look.",
    )
    monkeypatch.setattr(checks, "CHECKS", [check])
    said = pgfence("doctor", on=database, role="auditor")
    assert said.exit_code == exit_code
    assert said.out == (
        f"{severity:<8}  A_CODE  it\n  it is odd\n  Look.\n\n1 found, 1 checks made\n"
    )
    monkeypatch.setattr(checks, "CHECKS", [])
    nothing = pgfence("doctor", on=database, role="auditor")
    assert (nothing.exit_code, nothing.out) == (0, "nothing found, 0 checks made\n")


# errors


def test_a_database_without_pgfence_is_told_what_to_run(
    pgfence: Pgfence, empty_database: Database
) -> None:
    said = pgfence("refusals", on=empty_database)
    assert said.exit_code == 4
    error, following = said.err.splitlines()
    assert error == f"pgfence: pgfence is not installed in database {empty_database.name}"
    assert "`pgfence migrate`" in following


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        (["receipts", BATCH], "a role in pgfence_auditor"),
        (["receipts", "prune", "--older-than", "9", "--dry-run"], "a role in pgfence_auditor"),
        (["receipts", "prune", BATCH, "--older-than", "9"], "a member of pgfence_owner"),
        (["refusals"], "a role in pgfence_auditor"),
        (["workload", "list"], "a role in pgfence_auditor"),
        (["workload", "add", "w", "--role", "worker_a"], "a member of pgfence_owner"),
        (["resume", BATCH], "a member of pgfence_owner"),
        (["restored"], "a member of pgfence_owner"),
        (["registry", "switch", "--to", "etcd"], "a member of pgfence_owner"),
    ],
)
@pytest.mark.rule("R26")
def test_a_role_without_the_right_is_told_which_one_it_takes(
    pgfence: Pgfence, database: Database, command: list[str], needs: str
) -> None:
    for role in ("worker_a", "outsider"):
        said = pgfence(*command, on=database, role=role)
        assert said.exit_code == 4
        assert said.err.startswith(f"pgfence: role {role}: permission denied for ")
        assert said.err.endswith(f"\nnext: This takes {needs}.\n")


def test_a_database_that_does_not_answer_is_exit_code_3(pgfence: Pgfence) -> None:
    said = pgfence("refusals", "--dsn", "postgresql://nobody@127.0.0.1:1/nothing")
    assert said.exit_code == 3
    assert "Connection refused" in said.err
    assert said.err.endswith("next: Check --dsn or PGFENCE_DSN, and that it is up.\n")
    assert "Traceback" not in said.err


def test_a_statement_that_takes_too_long_is_refused_and_the_database_is_up(
    pgfence: Pgfence, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.connect(autocommit=False).execute("lock table pgfence.policies, pgfence.trust_bundles")
    monkeypatch.setenv("PGOPTIONS", "-c statement_timeout=50")
    run = ["run", "--resource", BATCH, "--operation", "settle", "--", "true"]
    for role, command, code in (("auditor", ["policy", "list"], 4), ("worker_a", run, 77)):
        said = pgfence(*command, on=database, role=role)
        assert (said.exit_code, "next: " in said.err) == (code, False)
        assert "PostgreSQL: canceling statement due to statement timeout" in said.err


def test_a_server_that_ends_the_session_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    """So is one that does not take sessions yet, or is cut off."""
    for sqlstate in ("57P01", "57P02", "57P03", "08006"):
        with pytest.raises(typer.Exit) as ended, told():
            raise psycopg.errors.lookup(sqlstate)("it goes down")
        assert ended.value.exit_code == 3
        assert "next: Check --dsn" in capsys.readouterr().err


def test_a_dsn_that_is_none_is_exit_code_2(pgfence: Pgfence) -> None:
    assert pgfence("refusals", "--dsn", "not a dsn").exit_code == 2


def test_a_password_in_the_environment_is_in_no_error_and_no_help(
    pgfence: Pgfence, database: Database
) -> None:
    password = re.escape(support.ROLE_PASSWORD).replace("\\ ", ".{1,3}")
    for said in (
        pgfence("refusals", on=database, role="outsider"),
        pgfence("refusals", "--help", on=database, role="outsider"),
    ):
        assert not re.search(password, said.out + said.err)


# the manual


def commands() -> list[str]:
    """Every command that there is: 'keys new', 'demo', ..."""
    names = [str(c.name or c.callback.__name__) for c in app.registered_commands if c.callback]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        names += [
            f"{group.name} {c.name or c.callback.__name__}"
            for c in group.typer_instance.registered_commands
            if c.callback
        ]
    return names


def test_the_manual_has_every_command_and_its_json(pgfence: Pgfence) -> None:
    usage, _, documents = MANUAL.partition("## JSON")
    for command in commands():
        assert f"| `pgfence {command}" in usage
        if command != "registry serve":
            assert f"| `{command}" in documents
        assert "--json" in pgfence(*command.split(), "--help").out


def test_the_error_in_the_manual_is_the_real_one(pgfence: Pgfence, database: Database) -> None:
    said = pgfence("workload", "add", "settlement", "--role", "worker_c", on=database)
    command, _, error = MANUAL.partition("```console\n")[2].partition("```")[0].partition("\n")
    assert command == "$ pgfence workload add settlement --role worker_c"
    assert (said.exit_code, said.err) == (4, error)


def test_json_keys_of_the_manual_are_those_of_the_documents(
    pgfence: Pgfence, database: Database
) -> None:
    grant = issue(database, "worker_a", BATCH)
    assert apply(database, grant.token, 1, "one") == "ACCEPTED"
    assert apply(database, grant.token, 1, "two") == "PAYLOAD_CONFLICT"
    for words, name in (
        (["receipts", BATCH], "receipts RESOURCE"),
        (["receipts", "verify"], "receipts verify"),
        (["refusals"], "refusals"),
        (["workload", "list"], "workload list"),
    ):
        document = pgfence(*words, "--json", on=database, role="auditor").document
        keys = re.findall(r'"(\w+)":', json.dumps(document))
        (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", MANUAL, re.MULTILINE)
        assert list(dict.fromkeys(re.findall(r"`(\w+)`", row))) == list(dict.fromkeys(keys))


@pytest.mark.parametrize(
    "arguments",
    [
        ["policy", "set", "a\udcffb"],
        ["rollout", "enforce", "a\udcffb", "--yes"],
        ["resume", "a\udcffb"],
        ["workload", "list", "--dsn", "postgresql://dba:secret\udcff@localhost/billing"],
    ],
)
def test_an_argument_that_is_not_utf_8_is_a_usage_error_and_not_repeated(
    pgfence: Pgfence, database: Database, arguments: list[str]
) -> None:
    """Python passes such a byte on as half of a surrogate pair."""
    said = pgfence(*arguments, on=database)
    assert said.exit_code == 2
    assert said.err == ("pgfence: an argument, or a variable of the environment, is not in UTF-8\n")
