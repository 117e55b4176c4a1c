"""The command line where the registry is in another database (R13)."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from pgfence.audit import doctor
from pgfence.audit.checks import CHECKS
from pgfence.client.protocol import read_clock
from tests.cli.conftest import Pgfence
from tests.cli.documents import ROOT
from tests.elsewhere import Owner, use_registry_elsewhere
from tests.guarded import run
from tests.registry import registry
from tests.support import Database, Keys, wait_until, wait_until_blocked
from tests.workers import Worker, end_lease, grant_of, in_background, no_timeouts

BATCH = "invoice-batch/2026-07-19"


def codes(said: Any) -> list[str]:
    """What doctor says that only the comparison can know."""
    known = ("CLOCKS_APART", "NOT_PLACED", "KEY_NOT_TRUSTED", "POLICY_DIFFERS")
    return [f["code"] for f in said.document["findings"] if f["code"] in known]


def test_r13_the_commands_of_the_manual_arrange_it_and_back(
    pgfence: Pgfence, database: Database, registry_database: Database, keys: Keys
) -> None:
    before = Worker.login(database, keys, "worker_a")
    before.release(before.acquire(BATCH).lease)
    said = pgfence("registry", "elsewhere", "--tolerance-ms", 0, "--json", on=database)
    assert said.document == {"audience": "billing", "tolerance_ms": 0, "above": 1}
    said = pgfence("registry", "elsewhere", "--tolerance-ms", 200, on=database)
    assert "pgfence registry place PREFIX billing --above 1" in said.out.splitlines()[-1]
    place = ["registry", "place", "invoice-batch/", "billing", "--above", 1]
    assert pgfence(*place, "--json", on=registry_database).document == {
        "prefix": "invoice-batch/",
        "audience": "billing",
        "above": 1,
    }
    assert pgfence(*place, on=registry_database).out == "invoice-batch/ is guarded by billing\n"
    owner = Owner.login(database, registry_database, keys, "worker_a")
    held = owner.acquire(BATCH)
    assert held.fence_token == 2
    said = pgfence("registry", "here", "--above", 2, "--json", on=database)
    assert said.document == {"above": 2}
    assert before.acquire(BATCH).fence_token == 3


def test_r8_policy_set_takes_the_generation_of_the_other_database(
    pgfence: Pgfence, database: Database
) -> None:
    policy = ["policy", "set", "invoice-batch/", "--any-operation", "--generation"]
    assert pgfence(*policy, 7, "--json", on=database).document["generation"] == 7
    assert pgfence(*policy, 7, on=database).exit_code == 4


def test_r13_doctor_says_what_keeps_a_registry_elsewhere_from_counting(
    pgfence: Pgfence, database: Database, registry_database: Database
) -> None:
    doctor = ["doctor", "--registry", registry_database.dsn("auditor"), "--json"]
    here = pgfence(*doctor, on=database, role="auditor")
    assert (here.exit_code, "nothing to compare" in here.err) == (4, True)
    use_registry_elsewhere(database, registry_database)
    assert codes(pgfence(*doctor, on=database, role="auditor")) == []
    pgfence("policy", "set", "", "--any-operation", on=database)
    pgfence("registry", "place", "", "archive", on=registry_database)
    said = pgfence(*doctor, on=database, role="auditor")
    assert codes(said) == ["NOT_PLACED", "POLICY_DIFFERS"]
    assert said.exit_code == 1


def test_r8_doctor_finds_a_policy_that_the_registry_alone_has(
    pgfence: Pgfence, database: Database, registry_database: Database
) -> None:
    """Of the resources that are placed in this database, and of no other one."""
    use_registry_elsewhere(database, registry_database)

    def differing() -> list[str]:
        doctor = ["doctor", "--registry", registry_database.dsn("auditor"), "--json"]
        findings = pgfence(*doctor, on=database, role="auditor").document["findings"]
        return [f["object"] for f in findings if f["code"] == "POLICY_DIFFERS"]

    policy = ["policy", "set", "invoice-batch/", "--any-operation", "--generation", 7]
    assert pgfence(*policy, on=registry_database).exit_code == 0
    assert differing() == ["invoice-batch/"]
    pgfence("registry", "place", "invoice-batch/", "archive", on=registry_database)
    assert differing() == []
    pgfence("registry", "place", "invoice-batch/2026", "billing", on=registry_database)
    assert differing() == ["invoice-batch/"]
    assert pgfence(*policy, on=database).exit_code == 0
    assert differing() == []


@pytest.mark.parametrize(("ahead", "found"), [(0.4, []), (0.6, ["CLOCKS_APART"])])
def test_r13_doctor_measures_how_far_the_clocks_are_apart(
    pgfence: Pgfence,
    database: Database,
    registry_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    found: list[str],
) -> None:
    use_registry_elsewhere(database, registry_database, tolerance_ms=500)

    def read(clock: Any) -> Any:
        """Every other reading is the registry's."""
        reads.append(1)
        answer = yield from read_clock(clock)
        return answer._replace(server=answer.server + ahead) if len(reads) % 2 else answer

    reads: list[int] = []
    monkeypatch.setattr("pgfence.audit.elsewhere.read_clock", read)
    doctor = ["doctor", "--registry", registry_database.dsn("auditor"), "--json"]
    assert codes(pgfence(*doctor, on=database, role="auditor")) == found


def test_r20_doctor_names_a_session_that_holds_up_others_for_longer_than_any_proof_counts(
    database: Database, registry_database: Database, keys: Keys
) -> None:
    (check,) = (check for check in CHECKS if check.code == "HELD_UP")
    sooner = replace(check, query=check.query.replace("30 seconds", "0 seconds"))
    use_registry_elsewhere(database, registry_database, tolerance_ms=0)
    owner = Owner.login(database, registry_database, keys, "worker_a")
    held = owner.acquire(BATCH)
    shown = owner.prove(held.lease)
    assert owner.advance(held.token, shown).verdict == "ADVANCED"
    owner.resource.conn.execute("begin")
    assert owner.apply(held.token, 1, shown).verdict == "ACCEPTED"
    no_timeouts(owner.resource)
    owner.registry.release(held.lease)
    rival = Owner.login(database, registry_database, keys, "worker_b")
    newer = rival.acquire(BATCH)
    proof = rival.prove(newer.lease)
    waiting = in_background(lambda: rival.advance(newer.token, proof))
    wait_until_blocked(database.connect(), rival.resource.pid)
    auditor = database.connect("auditor")
    assert doctor.examine(auditor, [check]).findings == ()
    wait_until(lambda: doctor.examine(auditor, [sooner]).findings != (), "it is found")
    (found,) = doctor.examine(auditor, [sooner]).findings
    assert found.object == BATCH
    end = str(found.step).rpartition(": ")[2]
    assert end == f"select pg_terminate_backend({owner.resource.pid});"
    run(database.connect(), end)
    assert waiting.result().verdict == "ADVANCED"
    assert doctor.examine(auditor, [sooner]).findings == ()


def test_r45_a_holder_that_does_nothing_proves_what_a_dead_worker_left_unknown(
    pgfence: Pgfence, database: Database, registry_database: Database, keys: Keys
) -> None:
    """The database does not hear that a lease is over, so somebody has to raise the fence."""
    use_registry_elsewhere(database, registry_database, tolerance_ms=0)
    owner = Owner.login(database, registry_database, keys, "worker_a")
    held = owner.acquire(BATCH)
    owner.resource.call("select pgfence.report_unknown(%s, 1, %s)", [held.token, "0" * 64])
    end_lease(registry_database, held.lease)
    remaining = pgfence("reconcile", "--json", on=database).document["remaining"]
    assert [unknown["reason"] for unknown in remaining] == ["LEASE_HELD"]
    segment = [BATCH, grant_of(held.token).operation_root, 1]
    says = pgfence("answer", *segment, "NOT_APPLIED", "--evidence", "I looked", on=database)
    assert (says.exit_code, "not known to be over" in says.err) == (4, True)
    hold = ["run", "--resource", BATCH, "--operation", "settle", "--timeout", 30]
    there = ["--registry", registry_database.dsn("worker_b"), "--", "true"]
    with registry(registry_database, keys):
        assert pgfence(*hold, *there, on=database, role="worker_b").exit_code == 0
    settled = pgfence("reconcile", "--json", on=database).document["settled"]
    assert [one["outcome"] for one in settled] == ["PROVEN_NOT_APPLIED"]


def test_r14_a_wider_step_mends_what_many_failovers_of_the_registry_have_refused(
    pgfence: Pgfence, database: Database, registry_database: Database, keys: Keys
) -> None:
    """With the commands of the manual."""
    use_registry_elsewhere(database, registry_database, tolerance_ms=0)
    # As far as eight failovers may raise the tokens.
    pgfence("restored", "--above", 2**40, on=registry_database)
    owner = Owner.login(database, registry_database, keys, "worker_a")
    held = owner.acquire(BATCH)
    assert owner.advance(held.token, owner.prove(held.lease)).verdict == "FENCE_STEP"
    owner.registry.release(held.lease)
    commands = [
        shlex.split(line)[1:]
        for line in (ROOT / "docs" / "registry.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("pgfence policy set")
    ]
    assert [command[-2] for command in commands] == ["--dsn", "--dsn"]
    for command, on in zip(commands, (database, registry_database), strict=True):
        assert pgfence(*command[:-2], on=on).exit_code == 0
    again = owner.acquire(BATCH)
    assert owner.advance(again.token, owner.prove(again.lease)).verdict == "ADVANCED"
    doctor = ["doctor", "--registry", registry_database.dsn("auditor"), "--json"]
    assert codes(pgfence(*doctor, on=database, role="auditor")) == []
