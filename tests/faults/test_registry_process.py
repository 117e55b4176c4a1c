"""The registry as a process: killed, doubled, stopped, disconnected, started with a wrong key."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pgfence
from pgfence import errors, tokens
from pgfence.drivers import psycopg as driver
from pgfence.registry import serve
from pgfence.registry.issuer import Issuer, Outcome
from tests import rotation_cases as rotation
from tests.faults.conftest import RESOURCE
from tests.pgbouncer import Pooler
from tests.registry import registry_process
from tests.support import (
    PATIENCE,
    Database,
    Keys,
    free_ports,
    make_bundle,
    rotate,
    set_for_roles,
    wait_until,
)
from tests.workers import Worker, end_lease, in_background, no_timeouts

GRANTS = "select fence_token, token is not null from pgfence_registry.grants order by fence_token"


class Waiting:
    """A worker in a thread that holds a resource as soon as it gets it."""

    def __init__(
        self, database: Database, resource: str = RESOURCE, role: str = "worker_a"
    ) -> None:
        self.fence_tokens: list[int] = []
        self._arguments = (database.dsn(role), resource)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        dsn, resource = self._arguments
        with (
            pgfence.connect(dsn) as fence,
            fence.hold(resource, operation="settle", ttl=60, timeout=PATIENCE) as lease,
        ):
            self.fence_tokens.append(lease.apply({"page": 1}, lambda tx: None).fence_token)

    def join(self) -> list[int]:
        self._thread.join(PATIENCE)
        return self.fence_tokens


def test_r53_a_registry_killed_between_decision_and_signature_loses_nothing(
    database: Database, key_file: Path, tmp_path: Path
) -> None:
    watch = database.connect()
    dsn = database.dsn("registry")
    with registry_process(dsn, key_file, tmp_path / "first.log") as first:
        first.wait_for("connected")
        first.process.send_signal(signal.SIGSTOP)
        worker = Waiting(database)
        wait_until(
            lambda: watch.execute(GRANTS).fetchall() == [(1, False)],
            "the grant is decided and not signed",
        )
        first.kill()
    with registry_process(dsn, key_file, tmp_path / "second.log") as second:
        assert worker.join() == [1]
        second.wait_for("signed")
    assert watch.execute(GRANTS).fetchall() == [(1, True)]


def test_r53_two_registries_sign_each_grant_once(
    database: Database, key_file: Path, tmp_path: Path
) -> None:
    dsn = database.dsn("registry")
    with (
        registry_process(dsn, key_file, tmp_path / "first.log") as first,
        registry_process(dsn, key_file, tmp_path / "second.log") as second,
    ):
        first.wait_for("connected")
        second.wait_for("connected")
        workers = [Waiting(database, f"invoice-batch/{day}") for day in range(8)]
        assert [worker.join() for worker in workers] == [[1]] * 8
        wait_until(
            lambda: len(first.events("signed")) + len(second.events("signed")) >= 8,
            "both have said what they signed",
        )
        signed = [event["lease"] for each in (first, second) for event in each.events("signed")]
    assert len(signed) == len(set(signed)) == 8


def test_r53_renewing_and_releasing_go_on_without_a_registry(
    database: Database, key_file: Path, tmp_path: Path
) -> None:
    watch = database.connect()
    with (
        registry_process(database.dsn("registry"), key_file, tmp_path / "log") as process,
        pgfence.connect(database.dsn("worker_a")) as fence,
    ):
        process.wait_for("connected")
        with fence.hold(RESOURCE, operation="settle", ttl=10) as lease:
            process.kill()
            ends = "select lease_ends_at from pgfence_registry.grants where lease = %s"
            before = watch.execute(ends, [lease.grant.lease]).fetchone()
            wait_until(
                lambda: watch.execute(ends, [lease.grant.lease]).fetchone() != before,
                "the lease was renewed",
            )
            lease.apply({"page": 1}, lambda tx: None)
            lease.release()
            state = "select state from pgfence_registry.grants where lease = %s"
            assert watch.execute(state, [lease.grant.lease]).fetchone() == ("RELEASED",)


def test_a_registry_that_lost_its_connection_comes_back(
    database: Database, key_file: Path, tmp_path: Path
) -> None:
    with registry_process(database.dsn("registry"), key_file, tmp_path / "log") as process:
        process.wait_for("connected")
        database.connect().execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'registry'"
        )
        process.wait_for("disconnected")
        process.wait_for("connected", count=2)
        assert Waiting(database).join() == [1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_registry_stops_cleanly_when_told(
    database: Database, key_file: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with registry_process(database.dsn("registry"), key_file, tmp_path / "log") as process:
        process.wait_for("connected")
        process.process.send_signal(number)
        assert process.process.wait(PATIENCE) == 0
        assert process.events("stopped")


def test_a_key_file_that_others_may_read_is_refused(database: Database, key_file: Path) -> None:
    key_file.chmod(0o640)
    with pytest.raises(errors.KeyFileError, match="chmod 600"):
        serve.run(database.dsn("registry"), key_file)


@pytest.mark.parametrize("purpose", ["root", "status"])
def test_a_key_that_is_no_grant_key_of_the_bundle_is_refused(
    database: Database, keys: Keys, tmp_path: Path, purpose: str
) -> None:
    path = tmp_path / "other.key"
    tokens.write_key(path, getattr(keys, purpose))
    with registry_process(database.dsn("registry"), path, tmp_path / "log") as process:
        assert process.process.wait(PATIENCE) != 0
        # A traceback follows the log line, so the lines are not all JSON.
        assert f"a {purpose} key of trust bundle 1" in process.log_file.read_text(encoding="utf-8")


def test_r33_a_registry_whose_key_is_rotated_out_ends_with_a_word_and_without_a_signature(
    database: Database, keys: Keys, key_file: Path, tmp_path: Path
) -> None:
    next_file = tmp_path / "next.key"
    tokens.write_key(next_file, rotation.NEXT_GRANT_KEY)
    second = rotation.with_next_grant_key(make_bundle(keys))
    dsn, watch = database.dsn("registry"), database.connect()
    with registry_process(dsn, key_file, tmp_path / "old.log") as old:
        old.wait_for("connected")
        rotate(database, second, keys.root)
        worker = Waiting(database)
        assert old.process.wait(PATIENCE) != 0
        assert "is no key of trust bundle 2" in old.log_file.read_text(encoding="utf-8")
        assert watch.execute(GRANTS).fetchall() == [(1, False)]
    with registry_process(dsn, next_file, tmp_path / "next.log") as following:
        assert worker.join() == [1]
        assert not following.events("the trust bundle ends soon")


def test_a_registry_says_that_the_trust_bundle_ends_soon(
    database: Database, keys: Keys, key_file: Path, tmp_path: Path
) -> None:
    tomorrow = int(time.time() + 86400) * 1_000_000
    rotate(database, rotation.after(make_bundle(keys), expires_at=tomorrow), keys.root)
    with registry_process(database.dsn("registry"), key_file, tmp_path / "log") as process:
        process.wait_for("the trust bundle ends soon")
        assert process.events("connected")


def test_a_message_that_is_no_grant_is_not_signed_and_holds_nobody_up(
    database: Database, key_file: Path, tmp_path: Path
) -> None:
    with registry_process(database.dsn("registry"), key_file, tmp_path / "log") as process:
        process.wait_for("connected")
        with psycopg.connect(database.dsn("dba")) as conn:
            conn.execute("set role pgfence_owner")
            conn.execute(
                "insert into pgfence_registry.grants (lease, resource, fence_token, owner,"
                " request_id, issuer_epoch, ttl_ms, message, digest, granted_at, lease_ends_at)"
                " values ('lease-x', 'x', 1, 'worker-a', 'r', 1, 60000, '{\"schema\":\"other\"}',"
                " 'x', now(), now() + interval '1 minute')"
            )
        assert Waiting(database).join() == [1]
        process.wait_for("not signed")
        assert Waiting(database, "invoice-batch/another").join() == [1]
        assert len(process.events("not signed")) == 1
    row = database.connect().execute(
        "select token from pgfence_registry.grants where resource = 'x'"
    )
    assert row.fetchone() == (None,)


def test_a_process_whose_role_may_not_sign_says_which_grant_is_missing(
    database: Database, keys: Keys
) -> None:
    to_grant = "grant pgfence_registry to worker_a"
    with pytest.raises(errors.NoWorkloadError, match=to_grant) as caught:
        serve.serve(database.dsn("worker_a"), Issuer(keys.grant), threading.Event())
    assert caught.value.next_step == f"Run: {to_grant};"


class CannotSign(Issuer):
    """An issuer whose every look for grants is cancelled."""

    def sign_pending(self, conn: psycopg.Connection[Any]) -> list[Outcome]:
        raise psycopg.errors.QueryCanceled("canceling statement due to user request")


def test_r20_overdue_sessions_are_ended_also_while_signing_fails(
    database: Database, keys: Keys
) -> None:
    holder = Worker.login(database, keys, "worker_a")
    rival = Worker.login(database, keys, "worker_b")
    held = holder.acquire(RESOURCE)
    holder.conn.execute("begin")
    assert holder.apply(held.token, 1).verdict == "ACCEPTED"
    no_timeouts(holder)
    rival.ask(RESOURCE, "next")
    end_lease(database, held.lease)
    waiting = in_background(lambda: rival.ask(RESOURCE, "next"))
    stop = threading.Event()
    issuer = CannotSign(keys.grant)
    database.watcher.execute("grant pg_signal_backend to registry")
    serving = in_background(lambda: serve.serve(database.dsn("registry"), issuer, stop))
    try:
        assert waiting.result(PATIENCE).state == "SIGNING"
    finally:
        stop.set()
        serving.result(PATIENCE)
        database.watcher.execute("revoke pg_signal_backend from registry")


class SignsAtTimes(Issuer):
    """Its looks fail, but for the third one."""

    looks = 0

    def sign_pending(self, conn: psycopg.Connection[Any]) -> list[Outcome]:
        self.looks += 1
        if self.looks != 3:
            raise psycopg.errors.ReadOnlySqlTransaction("cannot execute UPDATE")
        return super().sign_pending(conn)


def test_pauses_grow_also_when_it_can_connect_and_not_sign_until_it_could(
    database: Database, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "pgfence.registry")

    def pauses() -> list[float]:
        said = [json.loads(record.message) for record in caplog.records]
        return [event["retry_in"] for event in said if event["event"] == "disconnected"]

    stop = threading.Event()
    serving = in_background(
        lambda: serve.serve(database.dsn("registry"), SignsAtTimes(keys.grant), stop)
    )
    try:
        wait_until(lambda: len(pauses()) >= 4, "it has failed four times")
    finally:
        stop.set()
        serving.result(PATIENCE)
    assert pauses()[:4] == [0.1, 0.2, 0.1, 0.2]


def test_what_is_no_dsn_is_an_error_and_not_tried_for_ever(keys: Keys) -> None:
    stopped = threading.Event()
    stopped.set()  # it would end here without a word
    with pytest.raises(psycopg.ProgrammingError, match="connection info string"):
        serve.serve("billing on db-1", Issuer(keys.grant), stopped)


def test_a_registry_stops_also_while_a_server_accepts_and_is_silent(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq would wait for two minutes, and nobody hears a signal meanwhile."""
    monkeypatch.setattr(driver, "CONNECT", 2)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dsn = f"host=127.0.0.1 port={listener.getsockname()[1]}"
        serving = in_background(lambda: serve.serve(dsn, Issuer(keys.grant), stop))
        silent, _ = listener.accept()
        with silent:
            stop.set()
            serving.result(PATIENCE)


def test_a_registry_behind_a_pooler_says_that_it_should_not_be(
    database: Database, pooler: Pooler, key_file: Path, tmp_path: Path
) -> None:
    """Negative control: directly it does not."""
    direct = database.dsn("registry")
    for number, (dsn, warnings) in enumerate([(direct, 0), (pooler.dsn(direct), 1)]):
        with registry_process(dsn, key_file, tmp_path / f"{number}.log") as process:
            assert Waiting(database).join() == [number + 1]
            assert len(process.events("a pooler is in between")) == warnings


def test_a_registry_signs_whatever_date_style_a_dba_has_set(
    database: Database, key_file: Path, tmp_path: Path
) -> None:
    set_for_roles(database, "datestyle", "German")
    with registry_process(database.dsn("registry"), key_file, tmp_path / "log"):
        assert Waiting(database).join() == [1]


def test_a_port_for_metrics_that_is_taken_is_named(database: Database, key_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-c", "from pgfence.cli import main; main()", "registry", "serve",
             "--key", key_file, "--metrics", port],
            env=os.environ | {"PGFENCE_DSN": database.dsn("registry")},
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert f"{port}: Address already in use" in ended.stderr


def test_a_registry_answers_metrics_with_the_handovers_of_its_database(
    database: Database, key_file: Path, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, "-c", "from pgfence.cli import main; main()", "registry", "serve",
         "--key", key_file, "--metrics", str(port), "--handover-budget", "600"],
        env=os.environ | {"PGFENCE_DSN": database.dsn("registry")},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip

    def metric(name: str) -> float:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                text = page.read().decode()
        except OSError:
            return -1.0
        return max((float(line.split()[1]) for line in text.splitlines()
                    if line.startswith(f"{name} ")), default=-1.0)  # fmt: skip

    try:
        with pgfence.connect(database.dsn("worker_a")) as fence:
            handed_over = 0
            # The first look only learns what was there before.
            while metric("pgfence_handover_seconds_count") < 1:
                handed_over += 1
                assert handed_over < 100
                with fence.hold(RESOURCE, operation="settle", ttl=60, timeout=PATIENCE) as lease:
                    lease.advance()
                    waiting = Waiting(database, role="worker_b")
                    wait_until(lambda: _waits(database), "the successor waits")
                waiting.join()
        assert metric("pgfence_grants_signed_total") >= 2 * handed_over
        assert metric("pgfence_handovers_over_budget_total") == 0
        assert metric("pgfence_handover_budget_seconds") == 600
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


def _waits(database: Database) -> bool:
    with psycopg.connect(database.dsn()) as conn:
        row = conn.execute("select from pgfence_registry.requests where state = 'WAITING'")
        return row.fetchone() is not None
