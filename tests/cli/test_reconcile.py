"""pgfence reconcile and pgfence answer: what is settled, who decides the rest, and the alarm."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing
from dataclasses import fields
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from pgfence import observe
from pgfence import reconcile as process
from pgfence.cli.output import log_to_stdout
from pgfence.drivers import psycopg as driver
from pgfence.reconcile import HANDLERS, Answer, Says, Unknown
from tests.cli.conftest import Pgfence
from tests.cli.test_commands import BATCH, MANUAL, apply
from tests.proxy import Proxy, proxy_to
from tests.support import (
    PATIENCE,
    Database,
    Issued,
    free_ports,
    issue,
    json_lines,
    wait_until,
)
from tests.workers import as_owner, end_lease, in_background

DIGEST = "0" * 64
ASKED: list[Unknown] = []
ANSWERED = threading.Event()


def handler(unknown: Unknown) -> Answer | None:
    """What a domain says: mails are known, the rest is not its own."""
    ASKED.append(unknown)
    if unknown.resource.startswith("mail/"):
        return Answer(Says.APPLIED, "the mail server's log has it")
    if unknown.resource.startswith("bank/"):
        return Answer(Says.ASK_A_PERSON, "the bank does not say")
    return None


def talkative(unknown: Unknown) -> Answer | None:
    return Answer(Says.APPLIED, "x" * 4001)


def silent(unknown: Unknown) -> Answer | None:
    ANSWERED.wait()
    return Answer(Says.NOT_APPLIED, "too late")


def leaving(unknown: Unknown) -> Answer | None:
    sys.exit(3)


def broken(unknown: Unknown) -> Answer | None:
    raise RuntimeError("no route to the domain")


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    ASKED.clear()
    ANSWERED.clear()


def unanswered(database: Database, resource: str = BATCH, *, segments: int = 0) -> Issued:
    """A commit that was not answered, after so many segments; its lease is over."""
    grant = issue(database, "worker_a", resource)
    for segment in range(1, segments + 1):
        assert apply(database, grant.token, segment) == "ACCEPTED"
    database.connect("worker_a").execute(
        "select pgfence.report_unknown(%s, %s, %s)", [grant.token, segments + 1, DIGEST]
    )
    end_lease(database, grant.lease)
    return grant


def age(database: Database, minutes: int) -> None:
    """Make what is unknown older."""
    as_owner(
        database,
        "update pgfence.unknown_mutations set reported_at = reported_at - %s * interval '1 min'",
        [minutes],
    )


def test_r45_nothing_unknown_is_said_with_exit_code_0(pgfence: Pgfence, database: Database) -> None:
    said = pgfence("reconcile", on=database)
    assert (said.exit_code, said.out) == (0, "nothing is unknown\n")


def test_r45_what_can_be_proven_is_settled(pgfence: Pgfence, database: Database) -> None:
    grant = unanswered(database)
    assert pgfence("reconcile", "--json", on=database).document["remaining"] != []
    newer = issue(database, "worker_b", BATCH)
    database.connect("worker_b").execute("select pgfence.advance(%s)", [newer.token])
    said = pgfence("reconcile", on=database)
    assert said.exit_code == 0
    assert said.out == (
        f"settled: PROVEN_NOT_APPLIED: segment 1 of {BATCH} under fence {grant.fence_token}\n"
        "nothing is unknown\n"
    )
    assert pgfence("reconcile", on=database).out == "nothing is unknown\n"


def test_r45_for_what_remains_it_says_who_must_decide_and_why(
    pgfence: Pgfence, database: Database
) -> None:
    unanswered(database)
    said = pgfence("reconcile", on=database)
    assert said.exit_code == 0
    assert "LEASE_OVER: segment 1" in said.out
    assert "the next owner of" in said.out
    (row,) = pgfence("reconcile", "--json", on=database).document["remaining"]
    assert (row["resource"], row["reason"]) == (BATCH, "LEASE_OVER")


def test_r45_after_15_minutes_it_is_an_alarm(pgfence: Pgfence, database: Database) -> None:
    unanswered(database)
    age(database, 14)
    assert pgfence("reconcile", on=database).exit_code == 0
    age(database, 2)
    said = pgfence("reconcile", on=database)
    assert said.exit_code == 1
    assert "ALARM: unknown for 16 minutes" in said.out
    assert pgfence("reconcile", "--json", on=database).document["alarm"] is True


def test_r45_a_handler_answers_what_cannot_be_proven_and_is_recorded(
    pgfence: Pgfence, database: Database
) -> None:
    unanswered(database, "mail/1")
    unanswered(database, "bank/1")
    unanswered(database, "other/1")
    name = f"{__name__}:handler"
    document = pgfence("reconcile", "--handler", name, "--json", on=database).document
    (settled,) = document["settled"]
    assert (settled["outcome"], settled["by"]) == ("APPLIED", name)
    assert settled["unknown"]["resource"] == "mail/1"
    said = {row["resource"]: row["answer"] for row in document["remaining"]}
    assert said == {"bank/1": "ASK_A_PERSON", "other/1": None}
    kept = database.connect("auditor").execute(
        "select resource, answer, handler, answered_by, evidence from pgfence.unknown_mutations"
        " where answer is not null order by resource"
    )
    assert kept.fetchall() == [
        ("bank/1", "ASK_A_PERSON", name, "dba", "the bank does not say"),
        ("mail/1", "APPLIED", name, "dba", "the mail server's log has it"),
    ]
    ASKED.clear()
    pgfence("reconcile", "--handler", name, on=database)
    assert [unknown.resource for unknown in ASKED] == ["other/1"]  # a person is asked now


def test_r45_the_owner_of_a_held_lease_is_asked_before_any_handler(
    pgfence: Pgfence, database: Database
) -> None:
    grant = unanswered(database, "mail/1")
    end_lease(database, grant.lease, 600)
    document = pgfence("reconcile", "--handler", f"{__name__}:handler", "--json", on=database)
    assert [row["reason"] for row in document.document["remaining"]] == ["LEASE_HELD"]
    assert ASKED == []


def test_r45_a_handler_that_fails_settles_nothing(
    pgfence: Pgfence, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    unanswered(database, "mail/1")
    said = pgfence("reconcile", "--handler", f"{__name__}:broken", "--json", on=database)
    assert len(said.document["remaining"]) == 1
    assert "no route to the domain" in caplog.text


def test_r45_an_answer_that_is_none_stops_no_round(pgfence: Pgfence, database: Database) -> None:
    for resource in ("mail/1", "mail/2"):
        unanswered(database, resource)
    said = pgfence("reconcile", "--handler", f"{__name__}:talkative", "--json", on=database)
    rows = said.document["remaining"]
    assert len(rows) == 2
    assert all("was not taken: answer_unknown: " in row["explanation"] for row in rows)


@pytest.mark.parametrize("name", ["silent", "leaving"])
def test_r45_a_handler_that_hangs_or_exits_keeps_nothing_back(
    pgfence: Pgfence,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    monkeypatch.setattr(process, "_HANDLER", 2.0)
    for resource in ("mail/1", "mail/2"):
        unanswered(database, resource)
    named = ["--handler", f"{__name__}:{name}", "--handler", f"{__name__}:handler"]
    said = pgfence("reconcile", *named, "--json", on=database)
    ANSWERED.set()
    assert [one["by"] for one in said.document["settled"]] == [f"{__name__}:handler"] * 2
    whys = {"silent": ["no answer within 2", "asked before"], "leaving": ["SystemExit"]}
    assert all(why in caplog.text for why in whys[name])


@pytest.mark.parametrize("name", ["no.such.module:f", f"{__name__}:nobody", "no colon", ":"])
def test_a_handler_that_there_is_not_is_named(
    pgfence: Pgfence, database: Database, name: str
) -> None:
    said = pgfence("reconcile", "--handler", name, on=database)
    assert said.exit_code == 4
    assert f"there is no handler {name}" in said.err


def test_r45_a_half_done_operation_is_shown_and_a_person_answers_for_it(
    pgfence: Pgfence, database: Database
) -> None:
    grant = issue(database, "worker_a", BATCH)
    assert apply(database, grant.token, 1) == "ACCEPTED"
    end_lease(database, grant.lease)
    (row,) = pgfence("reconcile", "--json", on=database).document["remaining"]
    assert (row["kind"], row["segment_seq"], row["reason"]) == ("EXPIRED_LEASE", 2, "HALF_DONE")
    words = ["answer", BATCH, grant.operation_root, 2, "APPLIED", "--evidence", "one page it was"]
    assert pgfence(*words, on=database).out == f"noted: APPLIED: segment 2 of {BATCH}\n"
    assert pgfence("reconcile", on=database).out == "nothing is unknown\n"


def test_r45_an_answer_against_a_receipt_is_refused(pgfence: Pgfence, database: Database) -> None:
    grant = unanswered(database, segments=1)
    words = ["answer", BATCH, grant.operation_root, 1, "NOT_APPLIED", "--evidence", "I think so"]
    said = pgfence(*words, on=database)
    assert said.exit_code == 4
    assert "its receipt stands" in said.err


def test_a_workload_settles_its_own_and_an_auditor_looks(
    pgfence: Pgfence, database: Database
) -> None:
    unanswered(database)
    for role, rows in (("worker_a", 1), ("worker_b", 0)):
        document = pgfence("reconcile", "--json", on=database, role=role).document
        assert len(document["remaining"]) == rows
    looked = pgfence("reconcile", "--look", "--json", on=database, role="auditor")
    assert len(looked.document["remaining"]) == 1
    refused = pgfence("reconcile", on=database, role="auditor")
    assert refused.exit_code == 4
    assert "next: Log in as a role of the workload" in refused.err
    assert pgfence("reconcile", "--watch", on=database, role="auditor").exit_code == 4
    assert pgfence("reconcile", "--look", on=database, role="outsider").exit_code == 4


def test_an_open_transaction_is_not_waited_for_without_end(
    pgfence: Pgfence, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgfence.reconcile._LOCK", 0.05)
    grant = unanswered(database)
    end_lease(database, grant.lease, 600)
    other = database.connect("worker_a", autocommit=False)
    other.execute("select * from pgfence.fenced_apply(%s, 1, 'x')", [grant.token])
    (row,) = pgfence("reconcile", "--json", on=database).document["remaining"]
    assert row["reason"] == "LOCKED"
    other.rollback()


def test_json_of_reconcile_is_that_of_the_manual(pgfence: Pgfence, database: Database) -> None:
    grant = unanswered(database)
    (row,) = pgfence("reconcile", "--json", on=database).document["remaining"]
    assert list(row) == [field.name for field in fields(Unknown)]
    (line,) = re.findall(r"^\| `reconcile` \| (.*) \|$", MANUAL, re.MULTILINE)
    assert set(row) | {"settled", "remaining", "alarm"} <= set(re.findall(r"`(\w+)`", line))
    words = ["answer", BATCH, grant.operation_root, 1, "NOT_APPLIED", "--evidence", "x", "--json"]
    document = pgfence(*words, on=database).document
    (line,) = re.findall(r"^\| `answer` \| (.*) \|$", MANUAL, re.MULTILINE)
    assert list(document) == re.findall(r"`(\w+)`", line)


def test_r45_watching_settles_warns_and_raises_the_alarm(
    database: Database, tmp_path: Path
) -> None:
    unanswered(database)
    (port,) = free_ports(1)
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", "from pgfence.cli import main; main()",
             "reconcile", "--watch", "--every", "0.1", "--json", "--metrics", str(port)],
            env=os.environ | {"PGFENCE_DSN": database.dsn("dba")},
            stdout=out,
        )  # fmt: skip

    def events(name: str) -> list[Any]:
        return [event for event in json_lines(log) if event["event"] == name]

    try:
        wait_until(lambda: bool(events("unknown")), "it says what is unknown")
        age(database, 16)
        wait_until(lambda: bool(events("overdue")), "it raises the alarm")
        (overdue,) = events("overdue")
        assert (overdue["resource"], overdue["owner"]) == (BATCH, "worker-a")
        assert "the next owner" in overdue["ask"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
            (oldest,) = re.findall(r"^pgfence_unknown_oldest_seconds (.*)$", page.read().decode(),
                                   re.MULTILINE)  # fmt: skip
        assert float(oldest) > 900
        newer = issue(database, "worker_b", BATCH)
        database.connect("worker_b").execute("select pgfence.advance(%s)", [newer.token])
        wait_until(lambda: bool(events("settled")), "it settles what is proven by then")
        assert events("settled")[0]["outcome"] == "PROVEN_NOT_APPLIED"
        assert len(events("unknown")) == 1
        database.connect().execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'pgfence reconcile'"
        )
        wait_until(lambda: bool(events("disconnected")), "it notices that it was cut off")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert events("stopped")
    finally:
        process.kill()
        process.wait()


def test_r45_a_server_that_has_gone_silent_keeps_neither_the_alarm_nor_the_end_back(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "ANSWER", 0.5)
    monkeypatch.setattr(driver, "CANCEL", 0.1)
    caplog.set_level(logging.INFO, "pgfence.reconcile")
    unanswered(database)
    stop = threading.Event()

    def said(event: str) -> bool:
        return f'"event": "{event}"' in caplog.text

    with proxy_to(database.dsn("dba")) as network:
        watching = in_background(lambda: process.watch(network.dsn, [], stop, 0.05, only=False))
        try:
            wait_until(lambda: said("unknown"), "it says what is unknown")
            network.freeze()
            age(database, 16)
            wait_until(lambda: said("overdue"), "it connects again, and raises the alarm")
            network.freeze()
        finally:
            stop.set()
        watching.result(PATIENCE)


def test_a_server_that_is_silent_from_the_start_is_exit_code_3(
    pgfence: Pgfence, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for it hears no signal."""

    class Silent(Proxy):
        def _pass(self, client: socket.socket, server: socket.socket, data: bytes) -> bytes:
            if b"schema_version" in data:
                self.freeze()
            return super()._pass(client, server, data)

    monkeypatch.setattr(process, "ANSWER", 0.5)
    monkeypatch.setattr(driver, "CANCEL", 0.1)
    with closing(Silent(database.dsn("dba"))) as network:
        said = pgfence("reconcile", "--watch", "--dsn", network.dsn)
    assert (said.exit_code, "no answer within 0.5" in said.err) == (3, True)


@pytest.mark.parametrize("as_json", [True, False])
def test_what_a_handler_s_own_client_logs_is_neither_lost_nor_out_of_form(
    pgfence: Pgfence, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    log = logging.getLogger("pgfence.client")
    log_to_stdout(as_json=as_json)
    observe.event(log, "settled", resource="mail/1")
    log.warning("lease %s: renewing failed: %s", "l-1", "cut off")
    try:
        raise RuntimeError("no route to the domain")
    except RuntimeError:
        log.exception("[]")
    out, err = capsys.readouterr()
    assert err == ""
    if not as_json:
        settled, warning, *failure = out.splitlines()
        assert settled.endswith(" settled resource=mail/1")
        assert warning == "lease l-1: renewing failed: cut off"
        assert (failure[0], failure[-1]) == ("[]", "RuntimeError: no route to the domain")
        return
    settled, warning, failure = map(json.loads, out.splitlines())
    assert (settled["event"], settled["resource"]) == ("settled", "mail/1")
    assert warning.pop("time")
    assert warning == {
        "event": "log",
        "level": "WARNING",
        "logger": "pgfence.client",
        "message": "lease l-1: renewing failed: cut off",
    }
    assert failure["message"].startswith("[]\nTraceback")
    assert failure["message"].endswith("RuntimeError: no route to the domain")


def test_installed_packages_offer_handlers(
    pgfence: Pgfence, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = EntryPoint("mails", f"{__name__}:handler", HANDLERS)
    monkeypatch.setattr("pgfence.reconcile.entry_points", lambda group: [offered])
    unanswered(database, "mail/1")
    document = pgfence("reconcile", "--json", on=database).document
    assert [one["by"] for one in document["settled"]] == [f"{__name__}:handler"]
