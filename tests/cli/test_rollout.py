"""pgfence rollout and pgfence policy, and the page that shows them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests import support
from tests.cli.conftest import Pgfence
from tests.cli.documents import ROOT, blocks, program
from tests.guarded import BATCH, DAY, NEXT_BATCH, make_table, protect, refused, run
from tests.rollout import shadow
from tests.support import Database, issue

PREFIX = "invoice-batch/"
PAGE = ROOT / "docs" / "rollout.md"
MANUAL = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
WRITE = f"insert into invoices values (1, '{DAY}', 10)"


@pytest.fixture
def tried_out(database: Database) -> Database:
    """In shadow, with one accepted segment, one would-be refusal and one write around it."""
    owner = database.connect("billing_owner")
    make_table(owner, "invoices", "plain")
    shadow(database, PREFIX)
    protect(owner, "invoices")
    grant = issue(database, "worker_a", BATCH)
    worker = database.connect("worker_a")
    for segment in (1, 5):
        worker.execute("select pgfence.fenced_apply(%s, %s, '')", [grant.token, segment])
    run(database.connect("worker_b"), WRITE)
    return database


def test_r29_status_shows_each_entry_and_its_numbers(pgfence: Pgfence, tried_out: Database) -> None:
    (entry,) = pgfence("rollout", "status", "--json", on=tried_out, role="auditor").document
    assert entry["enforced_since"] is None
    del entry["shadow_since"], entry["enforced_since"]
    assert entry == {
        "prefix": PREFIX,
        "mode": "SHADOW",
        "shadow_by": "dba",
        "enforced_by": None,
        "accepted": 1,
        "would_refuse": 1,
        "not_admitted": 1,
    }
    said = pgfence("rollout", "status", on=tried_out, role="auditor").out
    assert said.endswith("what has no entry is enforced\n")


def test_r29_status_says_so_where_everything_is_enforced(
    pgfence: Pgfence, database: Database
) -> None:
    said = pgfence("rollout", "status", on=database, role="auditor")
    assert said.out == "everything is enforced: no prefix was ever put in shadow\n"


def test_r29_enforce_shows_the_evidence_and_asks(pgfence: Pgfence, tried_out: Database) -> None:
    no = pgfence("rollout", "enforce", PREFIX, on=tried_out, typed="n\n")
    assert no.exit_code == 1
    for line in (
        rf"^{PREFIX} is in shadow since .*, put there by dba$",
        r"^accepted segments: 1$",
        r"^would have been refused: 1$",
        rf"^\| SEGMENT_GAP .*\| {BATCH} +\| worker-a +\| worker_a ",
        r"^transactions that wrote protected rows without admission: 1$",
        r"^\| public.invoices +\| worker_b ",
        rf"Enforce {PREFIX}\? There is no way back",
    ):
        assert re.search(line, no.out, re.MULTILINE), line
    run(
        tried_out.connect("worker_b"), f"update invoices set amount = 11 where batch_date = '{DAY}'"
    )
    yes = pgfence("rollout", "enforce", PREFIX, on=tried_out, typed="y\n")
    assert yes.exit_code == 0
    assert yes.out.endswith(f"{PREFIX} is enforced\n")
    with refused():
        run(tried_out.connect("worker_b"), "update invoices set amount = 12")
    back = pgfence("rollout", "shadow", PREFIX, on=tried_out)
    assert back.exit_code == 4
    assert back.err.startswith(f"pgfence: '{PREFIX}' is not put in shadow: prefix '{PREFIX}' is ")


def test_r29_enforce_waits_for_what_was_let_through(pgfence: Pgfence, tried_out: Database) -> None:
    writer = tried_out.connect("worker_b", autocommit=False)
    run(writer, "update invoices set amount = 12")
    said = pgfence("rollout", "enforce", BATCH, "--yes", "--wait", 0, "--json", on=tried_out)
    assert (said.exit_code, said.document["ended"]) == (1, False)
    writer.commit()
    said = pgfence("rollout", "enforce", BATCH, "--yes", "--json", on=tried_out)
    assert (said.exit_code, said.document["ended"]) == (0, True)
    assert said.document["evidence"]["entry"]["mode"] == "ENFORCED"


def test_r29_enforce_waits_for_what_was_let_through_and_prepared(
    pgfence: Pgfence, tried_out: Database
) -> None:
    writer = tried_out.connect("worker_b", autocommit=False)
    writer.tpc_begin(f"enforce {tried_out.name}")
    run(writer, "update invoices set amount = 12")
    writer.tpc_prepare()
    try:
        said = pgfence("rollout", "enforce", BATCH, "--yes", "--wait", 0, "--json", on=tried_out)
        assert (said.exit_code, said.document["ended"]) == (1, False)
    finally:
        writer.tpc_rollback()


def test_r29_enforce_does_not_wait_for_other_databases(
    pgfence: Pgfence, tried_out: Database, empty_database: Database
) -> None:
    """Nor need it see what the sessions of others do."""
    others = [empty_database.connect(autocommit=False) for _ in range(2)]
    others[1].tpc_begin(f"enforce {empty_database.name}")
    for other in others:
        other.execute("select pg_current_xact_id()")
    others[1].tpc_prepare()
    try:
        said = pgfence("rollout", "enforce", BATCH, "--yes", "--wait", 10, "--json", on=tried_out)
        assert (said.exit_code, said.document["ended"]) == (0, True)
    finally:
        others[1].tpc_rollback()


def test_r29_enforce_of_a_narrower_prefix_shows_what_may_have_been_of_it(
    pgfence: Pgfence, tried_out: Database
) -> None:
    said = pgfence("rollout", "enforce", NEXT_BATCH, "--yes", "--json", on=tried_out)
    found = said.document["evidence"]
    assert (found["accepted"], found["would_refuse"]) == (0, [])
    assert [f["table"] for f in found["not_admitted"]] == ["public.invoices"]


def test_r29_json_of_enforce_does_not_ask(pgfence: Pgfence, database: Database) -> None:
    assert pgfence("rollout", "enforce", PREFIX, "--json", on=database).exit_code == 2


@pytest.mark.rule("R26")
@pytest.mark.parametrize(
    ("command", "role", "needs"),
    [
        (["rollout", "status"], "worker_a", "a role in pgfence_auditor"),
        (["rollout", "shadow", PREFIX], "auditor", "a member of pgfence_owner"),
        (["rollout", "enforce", PREFIX, "--yes"], "auditor", "a member of pgfence_owner"),
        (["policy", "list"], "worker_a", "a role in pgfence_auditor"),
        (["policy", "set", PREFIX], "auditor", "a member of pgfence_owner"),
    ],
)
def test_r26_a_role_without_the_right_is_told_which_one_it_takes(
    pgfence: Pgfence, database: Database, command: list[str], role: str, needs: str
) -> None:
    said = pgfence(*command, on=database, role=role)
    assert said.exit_code == 4
    assert said.err.endswith(f"\nnext: This takes {needs}.\n")


def test_r8_policy_keeps_what_is_not_given_and_begins_a_generation(
    pgfence: Pgfence, database: Database
) -> None:
    def set_policy(*options: object) -> object:
        return pgfence("policy", "set", PREFIX, *options, "--json", on=database).document

    assert set_policy("--operation", "settle", "--largest-ttl", 3600) == {
        "prefix": PREFIX,
        "generation": 2,
        "operation_classes": ["settle"],
        "largest_step": 2**40,
        "largest_ttl_ms": 3_600_000,
    }
    grant = issue(database, "worker_a", BATCH)
    assert set_policy("--largest-step", 7) == {
        "prefix": PREFIX,
        "generation": 3,
        "operation_classes": ["settle"],
        "largest_step": 7,
        "largest_ttl_ms": 3_600_000,
    }
    refusal = database.connect("worker_a").execute(
        "select verdict from pgfence.fenced_apply(%s, 1, '')", [grant.token]
    )
    assert refusal.fetchone() == ("STALE_POLICY",)
    set_policy("--any-operation")
    listed = pgfence("policy", "list", "--json", on=database, role="auditor").document
    assert [(p["prefix"], p["generation"], p["operation_classes"]) for p in listed] == [
        ("", 1, None),
        (PREFIX, 4, None),
    ]
    bad = pgfence("policy", "set", PREFIX, "--largest-ttl", 0.01, on=database)
    assert bad.exit_code == 4
    assert "out of range" in bad.err


def test_json_keys_of_the_manual_are_those_of_rollout_and_policy(
    pgfence: Pgfence, tried_out: Database
) -> None:
    for words in (["rollout", "status"], ["policy", "list"]):
        document = pgfence(*words, "--json", on=tried_out, role="auditor").document
        (row,) = re.findall(rf"^\| `{' '.join(words)}` \| (.*) \|$", MANUAL, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == list(document[0])


@pytest.mark.timeout(300)
def test_the_page_goes_from_shadow_to_enforced(database: Database, tmp_path: Path) -> None:
    owner = database.connect("billing_owner")
    owner.execute("create table invoices (batch_date date not null, amount numeric not null)")
    owner.execute("grant select, insert on invoices to pgfence_app")
    environment = os.environ | {
        "PATH": f"{program(tmp_path / 'bin').parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PGFENCE_DSN": database.dsn("dba"),
    }
    said = ""
    for block in blocks(PAGE):
        if block.language == "sh":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                env=environment,
                capture_output=True,
                text=True,
                timeout=support.PATIENCE,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            said += done.stdout
        else:
            who = re.match(r"-- (\w+)(?:, refused with (\w+))?\n", block.text)
            assert who, block.text
            if who[2]:
                with refused(who[2]):
                    run(database.connect(who[1]), block.text)
            else:
                run(database.connect(who[1]), block.text)
    assert "NOT_ADMITTED" in said
    assert f"{PREFIX} is enforced\n" in said
    with psycopg.connect(database.dsn("auditor")) as conn:
        modes = conn.execute(
            "select prefix, enforced_since is not null from pgfence.rollout order by prefix"
        ).fetchall()
    assert modes == [(PREFIX, True), (BATCH, True)]
