"""A dump that is restored into another cluster: whole, without privileges, without data, without
schema (R26, R39)."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace

import psycopg
import pytest

from pgfence import embedded
from pgfence.audit import doctor
from pgfence.audit.checks import CHECKS
from pgfence.audit.doctor import Finding
from tests import support
from tests.faults.failover.clusters import DATABASE, SETTINGS, Copy, client_program
from tests.faults.failover.history import Held, Side, twice
from tests.faults.failover.test_restore import run_pgfence
from tests.support import Database, Keys, TestServer

RESOURCE = "invoice-batch/2026-07-19"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Dumped:
    """The database that was dumped, and what its workers hold there."""

    server: Copy
    side: Side
    held: Held

    def dump(self, *options: str) -> str:
        """What pg_dump writes, without what older servers do not know."""
        return _output("pg_dump", *options, self.server.dsn(DATABASE))

    def presented(self) -> Held:
        """The grant, for a test that counts its segments."""
        return replace(self.held)


def _output(program: str, *arguments: str) -> str:
    lines = subprocess.run(
        [client_program(program), *arguments], capture_output=True, text=True, check=True
    ).stdout.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("SET transaction_timeout"))


def restore(database: Database, script: str, *options: str, role: str | None = None) -> str:
    """Run a script with psql; what it says on standard error."""
    return subprocess.run(
        [client_program("psql"), "--no-psqlrc", "--quiet", *options, database.dsn(role)],
        input=script,
        capture_output=True,
        text=True,
        check="--single-transaction" in options,
    ).stderr


WHOLE = ("--single-transaction", "--set=ON_ERROR_STOP=1", "--output=/dev/null")


@pytest.fixture(scope="module")
def dumped(image: embedded.Server, keys: Keys) -> Iterator[Dumped]:
    """`worker_a` holds a resource and has written two segments."""
    with Copy(image) as server:
        side = Side(server.database, keys)
        held = side.acquire("worker_a", RESOURCE)
        assert held
        assert [side.apply(held), side.apply(held)] == ["ACCEPTED"] * 2
        yield Dumped(server, side, held)


@pytest.fixture(scope="module")
def elsewhere(bin_dir: object, dumped: Dumped) -> Iterator[TestServer]:
    """Another cluster, to which the roles were restored."""
    folder = support.fast_folder()
    with embedded.Server(dumped.server.bin_dir, settings=SETTINGS, parent=folder) as server:
        running = TestServer(server.dsn(), server.log_file)
        roles = _output("pg_dumpall", "--roles-only", "--dbname", dumped.server.dsn())
        roles = "".join(
            line for line in roles.splitlines(keepends=True) if " ROLE postgres" not in line
        )
        assert restore(Database(running, "postgres"), roles, "--set=ON_ERROR_STOP=1") == ""
        yield running


@pytest.fixture
def empty(elsewhere: TestServer) -> Iterator[Database]:
    """A fresh database in the other cluster."""
    name = f"restored_{next(_numbers)}"
    with psycopg.connect(elsewhere.dsn, autocommit=True) as conn:
        conn.execute(f"create database {name}")
        conn.execute(f"grant create on database {name} to dba")
    database = Database(elsewhere, name)
    yield database
    database.drop()


def acquired(side: Side, role: str) -> Held:
    held = side.acquire(role, RESOURCE)
    assert held
    return held


@pytest.mark.rule("R7", "R39")
def test_r39_a_restored_dump_refuses_grants_of_before_until_their_owners_acquire_again(
    dumped: Dumped, empty: Database, keys: Keys
) -> None:
    restore(empty, dumped.dump(), *WHOLE)
    old, new = dumped.presented(), Side(empty, keys)
    assert new.apply(old) == "REBIND_REQUIRED"
    again = acquired(new, "worker_b")
    assert again.fence_token > old.fence_token + 2**32
    assert new.apply(old) == "REVOKED_EPOCH"
    assert new.apply(again) == "ACCEPTED"
    assert twice(dumped.side.minted(), new.minted()) == 0
    new.assert_whole()
    with pytest.raises(psycopg.Error) as guarded:
        empty.connect("worker_a").execute("update ledger set writer = 'x'")
    assert guarded.value.sqlstate == "PF201"
    assert empty.connect("auditor").execute(
        "select protected_table::text, missing, unprotectable from pgfence.guards"
    ).fetchall() == [("ledger", None, None)]


def stale(database: Database) -> list[Finding]:
    """What doctor says of the attestation."""
    (check,) = (check for check in CHECKS if check.code == "ATTESTATION_CHANGED")
    return list(doctor.examine(database.connect("auditor"), [check]).findings)


@pytest.mark.rule("R25", "R26")
@pytest.mark.parametrize("role", ["pgfence_owner", "dba"])
def test_r25_after_a_restore_guards_are_looked_at_the_long_way_until_doctor_is_heeded(
    dumped: Dumped, empty: Database, keys: Keys, role: str
) -> None:
    """The function that remembers names tables by OIDs, which are others here."""
    restore(empty, dumped.dump(), *WHOLE)
    new = Side(empty, keys)
    held = acquired(new, "worker_b")
    assert new.apply(held) == "ACCEPTED"
    owner, trigger = empty.connect("billing_owner"), "trigger pgfence_guard_delete"
    owner.execute(f"alter table ledger disable {trigger}")
    with pytest.raises(psycopg.Error) as missing:
        new.apply(held)
    assert missing.value.sqlstate == "PF202"
    owner.execute(f"alter table ledger enable always {trigger}")
    assert stale(dumped.side.database) == []

    (finding,) = stale(empty)
    assert finding.run_as == "pgfence_owner"
    member = empty.connect("dba")
    member.execute(f"set role {role}")
    for statement in finding.sql:
        member.execute(statement)
    assert stale(empty) == []
    assert new.apply(held) == "ACCEPTED"
    owner.execute(f"alter table ledger disable {trigger}")
    with pytest.raises(psycopg.Error) as missing:
        new.apply(held)
    assert missing.value.sqlstate == "PF202"


@pytest.mark.rule("R39")
def test_r39_a_dump_beside_the_original_in_its_cluster_is_another_database(
    dumped: Dumped, keys: Keys
) -> None:
    """System identifier and timeline are the same; only the database's OID tells."""
    name = f"beside_{next(_numbers)}"
    dumped.server.execute(f"create database {name}")
    beside = Database(dumped.server.database.server, name)
    restore(beside, dumped.dump(), *WHOLE)
    old, new = dumped.presented(), Side(beside, keys)
    assert new.apply(old) == "REBIND_REQUIRED"
    assert new.apply(acquired(new, "worker_b")) == "ACCEPTED"
    assert new.apply(old) == "REVOKED_EPOCH"
    assert dumped.side.worker("worker_a").look(old.lease).state == "HELD"
    beside.drop()


OWNER_ONLY = [
    "pgfence.restored()",
    "pgfence.resume('r')",
    "pgfence.add_workload('worker-b', 'outsider')",
    "pgfence.remove_workload('worker_b')",
    "pgfence.set_policy('', null)",
    "pgfence.install_trust_bundle('', '{}')",
]


@pytest.mark.rule("R26", "R27")
def test_r27_a_dump_restored_without_privileges_is_closed_not_open(
    dumped: Dumped, empty: Database, keys: Keys
) -> None:
    restore(empty, dumped.dump("--no-privileges"), *WHOLE)
    calls = ["pgfence.schema_version()", "pgfence.fenced_apply('', 1, '')", *OWNER_ONLY]
    for role in ("worker_a", "registry", "auditor", "billing_owner", "outsider"):
        for call in calls:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                empty.connect(role).execute(f"select {call}")
    owner = empty.connect("billing_owner")
    owner.execute("grant select, insert, update, delete on ledger to worker_a")
    with pytest.raises(psycopg.Error) as guarded:
        empty.connect("worker_a").execute("update ledger set writer = 'x'")
    assert guarded.value.sqlstate == "PF201"


@pytest.mark.rule("R26", "R27")
@pytest.mark.parametrize("call", OWNER_ONLY)
def test_r27_schemas_that_are_opened_by_hand_after_it_open_nothing_of_the_owners(
    dumped: Dumped, empty: Database, keys: Keys, call: str
) -> None:
    """PUBLIC may execute every function of such a restore: the schemas alone kept it out."""
    restore(empty, dumped.dump("--no-privileges"), *WHOLE)
    with empty.connect() as superuser:
        superuser.execute("grant usage on schema pgfence, pgfence_registry to public")
    worker = empty.connect("worker_a")
    assert worker.execute("select pgfence.schema_version()").fetchone()  # the control
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="no member of pgfence_owner"):
        worker.execute(f"select {call}")
    for table in ("pgfence.fences", "pgfence_registry.grants"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute(f"update {table} set resource = 'x'")


@pytest.mark.rule("R26", "R27")
@pytest.mark.parametrize("options", [("--no-owner",), ("--no-owner", "--no-privileges")])
def test_r27_a_dump_restored_without_owners_accepts_nothing(
    dumped: Dumped, empty: Database, keys: Keys, options: tuple[str, ...]
) -> None:
    """What is not pgfence_owner's writes no table of pgfence: the tables are closed to it."""
    restore(empty, dumped.dump(*options), *WHOLE)
    with empty.connect() as superuser:
        superuser.execute("grant usage on schema pgfence, pgfence_registry to public")
        superuser.execute("grant select, insert, update, delete on ledger to worker_a")
    new = Side(empty, keys)
    with pytest.raises(psycopg.Error) as closed:
        new.apply(dumped.presented())
    assert closed.value.sqlstate == "PF204"
    with pytest.raises(psycopg.Error) as closed:
        new.acquire("worker_b", RESOURCE)
    assert closed.value.sqlstate == "PF204"
    with pytest.raises(psycopg.Error) as guarded:
        empty.connect("worker_a").execute("update ledger set writer = 'x'")
    assert guarded.value.sqlstate == "PF201"


def mended(database: Database) -> None:
    """The table's owner protects it again, as after any restore that changed the guard."""
    owner = database.connect("billing_owner")
    owner.execute("select pgfence.protect('ledger', '{resource}')")


@pytest.mark.rule("R25", "R39")
def test_r39_data_restored_after_the_schema_is_another_database_and_wants_its_guards_mended(
    dumped: Dumped, empty: Database, keys: Keys
) -> None:
    restore(empty, dumped.dump("--schema-only"), *WHOLE)
    restore(empty, dumped.dump("--data-only", "--disable-triggers"), *WHOLE)
    old, new = dumped.presented(), Side(empty, keys)
    assert new.apply(old) == "REBIND_REQUIRED"
    again = acquired(new, "worker_b")
    with pytest.raises(psycopg.Error) as missing:
        new.apply(again)
    assert missing.value.sqlstate == "PF202"
    mended(empty)
    assert new.apply(again) == "ACCEPTED"
    assert new.apply(old) == "REVOKED_EPOCH"
    new.assert_whole()


@pytest.mark.rule("R26", "R39")
def test_r39_data_alone_without_disabling_triggers_is_refused(
    dumped: Dumped, empty: Database
) -> None:
    restore(empty, dumped.dump("--schema-only"), *WHOLE)
    said = restore(empty, dumped.dump("--data-only"), "--set=ON_ERROR_STOP=1", role="dba")
    assert "ERROR" in said
    assert empty.connect().execute("select count(*) from pgfence.fences").fetchone() == (0,)


def fresh_installation(database: Database) -> None:
    """pgfence as `pgfence migrate` leaves it, and the table of the application."""
    support.install_from_manifest(database)
    with database.connect() as superuser:
        superuser.execute("grant create on schema public to billing_owner")
    owner = database.connect("billing_owner")
    owner.execute(
        "create table ledger (resource text not null, fence bigint, segment bigint,"
        " writer text default session_user, primary key (resource, fence, segment))"
    )
    owner.execute("grant select, insert, update, delete on ledger to worker_a, worker_b")


@pytest.mark.rule("R39")
def test_r39_data_over_a_fresh_installation_is_a_restore_although_its_identity_is_right(
    dumped: Dumped, empty: Database, keys: Keys
) -> None:
    """psql says errors, for the configuration is there already, and somebody goes on."""
    fresh_installation(empty)
    said = restore(empty, dumped.dump("--data-only", "--disable-triggers"))
    assert 'duplicate key value violates unique constraint "configuration_pkey"' in said
    mended(empty)
    old, new = dumped.presented(), Side(empty, keys)
    assert new.apply(old) == "REBIND_REQUIRED"
    again = acquired(new, "worker_b")
    assert again.fence_token > old.fence_token + 2**32
    assert new.apply(old) == "REVOKED_EPOCH"
    assert new.apply(again) == "ACCEPTED"


@pytest.mark.rule("R39")
@pytest.mark.parametrize("told", [True, False])
def test_r39_data_over_an_installation_with_a_bundle_of_its_own_is_told_by_hand(
    dumped: Dumped, empty: Database, keys: Keys, told: bool
) -> None:
    """Untold, the lease of before counts as held: the control."""
    fresh_installation(empty)
    support.configure(empty, keys)
    restore(empty, dumped.dump("--data-only", "--disable-triggers"))
    mended(empty)
    if told:
        run_pgfence(empty, "restored", "--reason", "data of the old cluster")
    old, new = dumped.presented(), Side(empty, keys)
    assert new.apply(old) == ("REVOKED_EPOCH" if told else "ACCEPTED")
    if told:
        again = acquired(new, "worker_b")
        assert again.fence_token > old.fence_token + 2**32
        assert new.apply(again) == "ACCEPTED"
