"""Recovery to a point in time, and files that are put back, which no identity shows (R39)."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from pgfence import embedded
from tests.faults.failover.clusters import Copy, Standby, client_program
from tests.faults.failover.history import Held, Side, twice
from tests.support import Database, Keys, wait_until


def run_pgfence(database: Database, *arguments: str) -> str:
    """The command line, as an operator runs it."""
    return subprocess.run(
        [sys.executable, "-c", "from pgfence.cli import main; main()", *arguments],
        env=os.environ | {"PGFENCE_DSN": database.dsn("dba")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


class Archived(Copy):
    """A primary whose WAL is archived, for a recovery of what it began with."""

    def __init__(self, source: embedded.Server, archive: Path) -> None:
        archive.mkdir()
        owner = source.data_dir.stat()
        os.chown(archive, owner.st_uid, owner.st_gid)
        self._archive = archive
        settings = {"archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
        super().__init__(source, settings=settings)

    def recovered(self, target: str, value: str) -> Copy:
        """The server that it began with, recovered to a point of this one's history."""
        segment = self.execute("select pg_walfile_name(pg_switch_wal())")
        wait_until(lambda: (self._archive / segment).exists(), "the WAL is in the archive")
        return Copy(
            self._source,
            "recovery.signal",
            {
                "restore_command": f"cp {self._archive}/%f %p",
                f"recovery_target_{target}": value,
                "recovery_target_inclusive": "off",
                "recovery_target_action": "promote",
            },
        )


@pytest.mark.rule("R7", "R39")
@pytest.mark.parametrize("target", ["lsn", "name"])
def test_r39_recovery_to_a_point_in_time_refuses_all_grants_of_before(
    image: embedded.Server, servers: ExitStack, keys: Keys, target: str
) -> None:
    primary = servers.enter_context(Archived(image, image.directory / f"archive-{target}"))
    old = Side(primary.database, keys)
    early = old.acquire("worker_a", "r")
    assert early
    assert [old.apply(early), old.apply(early)] == ["ACCEPTED"] * 2
    if target == "lsn":
        value = primary.execute("select pg_current_wal_insert_lsn()::text")
    else:
        value = "before the mistake"
        primary.execute("select pg_create_restore_point(%s)", value)
    assert old.apply(early) == "ACCEPTED"
    old.worker("worker_a").release(early.lease)
    late = old.acquire("worker_b", "r")
    assert late
    assert old.apply(late) == "ACCEPTED"

    recovered = servers.enter_context(primary.recovered(target, value))
    recovered.wait_until_promoted()
    new = Side(recovered.database, keys)
    # Restored, the early lease counts as held: only its epoch and the identity keep it out.
    assert [new.apply(early), new.apply(late)] == ["REBIND_REQUIRED"] * 2
    again = new.acquire("worker_b", "r")
    assert again
    assert again.fence_token > late.fence_token
    assert [new.apply(early), new.apply(late)] == ["REVOKED_EPOCH"] * 2
    position = new.worker("worker_b").call("select * from pgfence.position('r')")
    assert (position.last_segment, position.total_segments) == (2, 2)
    assert new.apply(again) == "ACCEPTED"
    assert twice(old.minted(), new.minted()) == 0
    new.assert_whole()


@pytest.mark.rule("R39")
def test_r39_above_leads_over_the_fences_of_a_history_that_is_left_behind(
    image: embedded.Server, servers: ExitStack, keys: Keys
) -> None:
    """Back to a moment before a failover: the promoted side minted above what is known here."""
    primary = servers.enter_context(Archived(image, image.directory / "archive-above"))
    standby = servers.enter_context(Standby(image, primary))
    value = primary.execute("select pg_current_wal_insert_lsn()::text")
    assert Side(primary.database, keys).acquire("worker_a", "r")
    standby.catch_up()
    standby.cut()
    standby.promote()
    left = Side(standby.database, keys).acquire("worker_a", "r")
    assert left
    recovered = servers.enter_context(primary.recovered("lsn", value))
    recovered.wait_until_promoted()
    run_pgfence(recovered.database, "restored", "--above", str(left.fence_token))
    new = Side(recovered.database, keys)
    again = new.acquire("worker_a", "r")
    assert again
    assert again.fence_token > left.fence_token
    # Both histories count epochs for themselves; that registry's grants are unknown to this one.
    assert new.apply(left) == "NOT_HELD"
    assert new.apply(again) == "ACCEPTED"


def put_back(image: embedded.Server, servers: ExitStack, keys: Keys, how: str) -> tuple[Side, Copy]:
    """Files of a server, copied while `worker_a` held, and put back when `worker_b` had written."""
    server = servers.enter_context(Copy(image))
    side = Side(server.database, keys)
    early = side.acquire("worker_a", "r")
    assert early
    assert side.apply(early) == "ACCEPTED"
    backup: Copy
    if how == "base backup":
        backup = BaseBackup(server)
    else:
        server.stop()
        backup = Copy(server)
        server.start()
        side.workers.clear()
    assert side.worker("worker_a").release(early.lease).state == "RELEASED"
    late = side.acquire("worker_b", "r")
    assert late
    assert side.apply(late) == "ACCEPTED"
    assert side.apply(early) == "STALE_OWNER"
    return side, servers.enter_context(backup)


class BaseBackup(Copy):
    """A base backup of a running server, started as it is: without recovery.signal."""

    def _initdb(self) -> None:
        self.password = self._source.password
        subprocess.run(
            [
                client_program("pg_basebackup"),
                *("--pgdata", self.data_dir, "--dbname", self._source.dsn()),
                *("--checkpoint", "fast", "--wal-method", "stream"),
            ],
            check=True,
        )
        subprocess.run(["chown", "-R", f"--reference={self.data_dir}", self.data_dir], check=True)


HOW = ["a stopped server", "base backup"]


@pytest.mark.rule("R39")
@pytest.mark.parametrize("how", HOW)
def test_r39_files_that_are_put_back_are_told_by_hand(
    image: embedded.Server, servers: ExitStack, keys: Keys, how: str
) -> None:
    old, copy = put_back(image, servers, keys, how)
    early, late = old.grants
    said = run_pgfence(copy.database, "restored", "--reason", "the disk was reset")
    assert said.startswith("grants below issuer epoch 2 are refused from now on\n")
    new = Side(copy.database, keys)
    assert [new.apply(early), new.apply(late)] == ["REVOKED_EPOCH"] * 2
    again = new.acquire("worker_b", "r")
    assert again
    assert again.fence_token > late.fence_token + 2**31
    assert [new.apply(early), new.apply(late)] == ["REVOKED_EPOCH"] * 2
    assert new.apply(again) == "ACCEPTED"
    assert twice(old.minted(), new.minted()) == 0
    new.assert_whole()


@pytest.mark.rule("R39")
@pytest.mark.parametrize("how", HOW)
def test_r39_files_that_are_put_back_and_not_told_let_a_stale_owner_in_and_raise_the_alarm(
    image: embedded.Server, servers: ExitStack, keys: Keys, how: str
) -> None:
    """The control, and the reason for the command: nothing in such a copy shows what it is."""
    old, copy = put_back(image, servers, keys, how)
    early, late = old.grants
    new = Side(copy.database, keys)
    assert new.apply(late) == "NOT_HELD"
    assert copy.database.connect("auditor").execute(
        "select verdict, reason, session_role from pgfence.refusals where occurrences > 0"
    ).fetchall() == [("NOT_HELD", "UNKNOWN_GRANT", "worker_b")]
    assert "pgfence refused NOT_HELD UNKNOWN_GRANT" in copy.database.server.log()
    assert new.apply(Held(early.resource, early.role, early.token, early.lease, 1, 1)) == "ACCEPTED"
    new.worker("worker_a").release(early.lease)
    assert new.acquire("worker_a", "r")
    assert twice(old.minted(), new.minted()) == 1


@pytest.mark.rule("R37")
def test_r37_the_paused_resource_is_resumed_with_one_command(primary: Copy, keys: Keys) -> None:
    side = Side(primary.database, keys)
    held = side.acquire("worker_a", "r")
    assert held
    with psycopg.connect(primary.database.dsn("dba")) as conn:
        conn.execute("set local role pgfence_owner")
        conn.execute("update pgfence.fences set paused_because = 'a test'")
    assert side.apply(held) == "PAUSED"
    run_pgfence(primary.database, "resume", "r", "--reason", "looked at it")
    again = side.acquire("worker_b", "r")
    assert again
    assert again.fence_token > held.fence_token
    assert side.apply(held) == "NOT_HELD"
    assert side.apply(again) == "ACCEPTED"
