"""doctor finds nothing in a good installation, names each planted weakness, and mends it (R26)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from pgfence import embedded
from pgfence.audit import doctor
from pgfence.audit.checks import CHECKS, SECURITY_RELEASES
from pgfence.audit.doctor import Finding, Severity
from pgfence.audit.installation import installation
from tests import support
from tests.guarded import make_table, protect, refused, run
from tests.support import Database, TestServer

pytestmark = pytest.mark.rule("R26")

_numbers = itertools.count(1)
_CHECKS = [check for check in CHECKS if check.code != "SERVER_VERSION"]


@pytest.fixture(scope="module")
def clinic(bin_dir: Path) -> Iterator[Database]:
    """A database as the quickstart makes it, on a server with settings fit for production.

    The server is one of its own: roles and parameters of the whole server are spoilt here.
    """
    settings: dict[str, str | int] = {"max_prepared_transactions": 5}
    with embedded.Server(bin_dir, settings=settings, parent=support.fast_folder()) as running:
        server = TestServer(running.dsn(), running.log_file)
        support.create_login_roles(server)
        database = support.create_guarded_database(server, "clinic", support.make_keys())
        with psycopg.connect(database.dsn(), autocommit=True) as superuser:
            superuser.execute("grant pg_signal_backend to registry")
            superuser.execute("create schema sales authorization billing_owner")
        with psycopg.connect(database.dsn("billing_owner"), autocommit=True) as owner:
            make_table(owner, "sales.invoices", "plain")
            make_table(owner, "sales.batches", "partitioned")
            protect(owner, "sales.invoices")
            protect(owner, "sales.batches")
        yield database


@pytest.fixture
def patient(clinic: Database) -> Iterator[Database]:
    """A copy of it, with a registry connected."""
    with support.copied(clinic, f"patient_{next(_numbers)}") as copy:
        copy.connect("registry")
        yield copy


def examine(database: Database) -> tuple[Finding, ...]:
    """What an auditor is told, but for the version of the server under test."""
    with psycopg.connect(database.dsn("auditor"), autocommit=True) as conn:
        report = doctor.examine(conn, _CHECKS)
    assert report.unseen == ()
    return report.findings


def mend(database: Database, finding: Finding) -> None:
    """Run what the finding says, statement by statement, as the role that it says."""
    role = {"superuser": None, "pgfence_owner": "dba"}.get(str(finding.run_as), finding.run_as)
    with psycopg.connect(database.dsn(role), autocommit=True) as conn:
        if finding.run_as == "pgfence_owner":
            conn.execute("set role pgfence_owner")
        for statement in finding.sql:
            run(conn, statement)


@dataclass(frozen=True)
class Case:
    """A weakness: how it is planted, and what doctor must name. by: who plants it."""

    code: str
    object: str
    plant: tuple[str, ...]
    by: str | None = None
    since: int = 14

    @property
    def name(self) -> str:
        return f"{self.code}: {'; '.join(self.plant)[:70]}"


def case(code: str, object_: str, *plant: str, by: str | None = None, since: int = 14) -> Case:
    return Case(code, object_, plant, by, since)


OWNER = "billing_owner"
_DEMOTED = "alter table {0} disable trigger user; alter table {0} enable trigger user"
_TRAP = (
    "create schema lair",
    "create table lair.trap (id integer, day date,"
    " foreign key (id, day) references sales.invoices)",
)


def _between(protected: str, action: str) -> tuple[str, ...]:
    """A table of the same owner, of which a foreign key changes rows along with a protected one."""
    return (
        "create schema lair",
        "create table sales.notes (id integer primary key, day date, line integer unique,"
        f" foreign key (line, day) references sales.{protected} {action})",
        "alter table sales.notes owner to billing_owner",
    )


_NEXT = (
    "create schema lair",
    "create function lair.next(integer) returns integer immutable language sql as 'select $1'",
    "alter function lair.next(integer) owner to worker_a",
)
_BODY = "language sql set search_path = pg_catalog, pg_temp as 'select 1'"

CASES = [
    # the server
    case("SYNCHRONOUS_COMMIT", "server", "alter system set synchronous_commit = off"),
    case("SYNCHRONOUS_COMMIT", "role worker_a", "alter role worker_a set synchronous_commit = off"),
    case("SYNCHRONOUS_COMMIT", "database {db}", "alter database {db} set synchronous_commit = off"),
    case(
        "SYNCHRONOUS_COMMIT",
        "role worker_a in database {db}",
        "alter role worker_a in database {db} set synchronous_commit to 'off'",
    ),
    case("FSYNC", "server", "alter system set fsync = off"),
    case("FULL_PAGE_WRITES", "server", "alter system set full_page_writes = off"),
    case("EVIDENCE_NOT_LOGGED", "server", "alter system set log_min_messages = fatal"),
    case("REPLICATION_ROLE", "role worker_b",
         "alter role worker_b set session_replication_role = replica"),
    case("PARAMETER_RIGHT", "session_replication_role",
         "grant set on parameter session_replication_role to worker_a", since=15),
    case("PARAMETER_RIGHT", "session_replication_role",
         "create role team", "grant team to worker_a",
         "grant set on parameter session_replication_role to team", since=15),
    case("PARAMETER_RIGHT", "archive_command",
         "grant alter system on parameter archive_command to public", since=15),
    # application roles
    case("SUPERUSER", "worker_a", "alter role worker_a superuser"),
    case("CREATEROLE", "worker_a", "alter role worker_a createrole"),
    case("CREATEROLE", "worker_a", "grant dba to worker_a"),
    case("REPLICATION", "registry", "alter role registry replication"),
    case("BYPASSRLS", "worker_b", "alter role worker_b bypassrls"),
    case("WRITE_SERVER_FILES", "worker_a", "grant pg_write_server_files to worker_a"),
    case("EXECUTE_SERVER_PROGRAM", "worker_a", "grant pg_execute_server_program to worker_a"),
    case("READ_SERVER_FILES", "worker_a", "grant pg_read_server_files to worker_a"),
    case("WRITE_ALL_DATA", "worker_a", "grant pg_write_all_data to worker_a"),
    case("WRITE_ALL_DATA", "worker_b",
         "create role inner_team", "create role outer_team",
         "grant pg_write_all_data to inner_team", "grant inner_team to outer_team",
         "grant outer_team to worker_b"),
    case("MAINTAIN", "worker_a", "grant pg_maintain to worker_a", since=17),
    case("SIGNAL_BACKEND", "worker_a", "grant pg_signal_backend to worker_a"),
    case("CREATE_SUBSCRIPTION", "worker_a", "grant pg_create_subscription to worker_a", since=16),
    case("FILE_FUNCTION", "lo_export(oid,text)",
         "grant execute on function lo_export(oid, text) to worker_a"),
    # groups and memberships
    case("GROUP_NOT_PLAIN", "pgfence_app", "alter role pgfence_app login"),
    case("GROUP_MEMBER", "pgfence_app", "grant pgfence_owner to pgfence_app"),
    case("GROUP_MEMBER", "pgfence_owner", "grant pg_monitor to pgfence_owner"),
    case("OWNER_MEMBER", "worker_a", "grant pgfence_owner to worker_a"),
    case("OWNER_MEMBER", "worker_a", "create role admins", "grant pgfence_owner to admins",
         "grant admins to worker_a"),
    case("OWNER_MEMBER", "worker_a",
         "grant pgfence_owner to worker_a with inherit false, set false, admin true", since=16),
    case("OWNER_MEMBER", "worker_a", "grant pgfence_owner to worker_a with inherit true, set false",
         since=16),
    case("OWNER_MEMBER", "worker_a", "grant pgfence_owner to worker_a with inherit false, set true",
         since=16),
    case("OWNER_MEMBER", "worker_b", "grant dba to worker_b"),
    case("OWNER_MEMBER", "registry", "grant pgfence_owner to registry"),
    case("ADMIN_OPTION", "worker_a", "grant pgfence_app to worker_a with admin option"),
    case("WORKLOAD_SIGNS", "worker_a", "grant pgfence_registry to worker_a"),
    case("SEVERAL_WORKLOADS", "worker_a", "set role pgfence_owner",
         "alter table pgfence.workload_roles drop constraint workload_roles_pkey",
         "insert into pgfence.workload_roles values ('worker_a', 'another', now(), 'me')"),
    case("WORKLOAD_WITHOUT_ROLE", "leaver", "create role leaver login", "set role pgfence_owner",
         "select pgfence.add_workload('leaver', 'leaver')", "reset role", "drop role leaver"),
    case("SEVERAL_WORKLOADS", "worker_a", "set role pgfence_owner",
         "insert into pgfence.workload_roles values ('worker_', 'another', now(), 'me', true)"),
    case("PATTERN_AND_CREATEROLE", "outsider", "alter role outsider createrole",
         "select pgfence.add_workload_pattern('settlement', 'settler-*')"),
    case("REGISTRY_MAY_NOT_SIGNAL", "registry", "revoke pg_signal_backend from registry"),
    # protected tables
    case("TABLE_OWNER", "worker_a", "grant billing_owner to worker_a"),
    case("TABLE_OWNER", "worker_a", "alter table sales.invoices owner to worker_a"),
    case("TABLE_OWNER", "worker_a", "alter table sales.batches_0 owner to worker_a"),
    case("TABLE_OWNER", "registry", "grant billing_owner to registry"),
    case("SCHEMA_OWNER", "worker_a", "alter schema sales owner to worker_a"),
    case("DATABASE_OWNER", "worker_a", "alter database {db} owner to worker_a"),
    case("GUARD_IMPOSSIBLE", "sales.invoices", "alter table sales.invoices set unlogged", by=OWNER),
    case("GUARD_IMPOSSIBLE", "sales.invoices",
         'create rule "A rule" as on insert to sales.invoices do instead nothing', by=OWNER),
    case("GUARD_IMPOSSIBLE", "sales.invoices", "create table child () inherits (sales.invoices)",
         by=OWNER),
    case("GUARD_IMPOSSIBLE", "sales.invoices", "create table parent (id integer not null)",
         "alter table sales.invoices inherit parent", by=OWNER),
    case("GUARD_IMPOSSIBLE", "sales.invoices",
         "create table above (like sales.invoices including indexes)"
         " partition by list (batch_date)",
         "alter table above attach partition sales.invoices default", by=OWNER),
    case("GUARD_NOT_WHOLE", "sales.invoices",
         "alter table sales.invoices disable trigger pgfence_guard_update", by=OWNER),
    case("GUARD_NOT_WHOLE", "sales.invoices", _DEMOTED.format("sales.invoices"), by=OWNER),
    case("GUARD_NOT_WHOLE", "sales.invoices",
         "drop trigger pgfence_guard_delete on sales.invoices", by=OWNER),
    case("GUARD_NOT_WHOLE", "sales.batches_1",
         "alter table sales.batches_1 disable trigger user;"
         "alter table sales.batches_1 disable trigger pgfence_guard_row", by=OWNER),
    case("GUARD_NOT_WHOLE", "sales.invoices", "grant trigger on sales.invoices to worker_b",
         by=OWNER),
    case("GUARD_NOT_WHOLE", "sales.invoices", "alter function pgfence._guard_1() reset all"),
    case("GUARD_NOT_WHOLE", "sales.invoices",
         "alter table sales.invoices alter column batch_date type timestamp", by=OWNER),
    case("TRUNCATE_RIGHT", "sales.invoices", "grant truncate on sales.invoices to public",
         by=OWNER),
    case("TRUNCATE_RIGHT", "sales.batches_0", "grant truncate on sales.batches_0 to worker_a",
         by=OWNER),
    case("REFERENCES_RIGHT", "sales.invoices", "grant references on sales.invoices to pgfence_app",
         by=OWNER),
    case("REFERENCES_RIGHT", "sales.batches.id",
         "grant references (id), update (amount) on sales.batches to worker_a", by=OWNER),
    case("REFERRING_TABLE", "lair.trap", *_TRAP, "alter schema lair owner to current_user",
         "alter table lair.trap owner to worker_b"),
    case("REFERRING_TABLE", "lair.trap", *_TRAP, "create role trappers",
         "alter table lair.trap owner to trappers", "grant trappers to worker_b"),
    case("REFERRING_TABLE", "lair.trap", *_between("invoices", "on delete cascade"),
         "create table lair.trap (note integer references sales.notes on delete cascade)",
         "alter table lair.trap owner to worker_b"),
    case("REFERRING_TABLE", "lair.trap", *_between("batches", "on update cascade"),
         "create table lair.trap (line integer references sales.notes (line))",
         "alter table lair.trap owner to worker_b"),
    case("REFERENCES_RIGHT", "sales.notes", *_between("batches", "on delete cascade"),
         "grant references on sales.notes to worker_a"),
    case("REPLACEABLE_CODE", "routine lair.next(integer)", *_NEXT,
         "alter table sales.invoices alter amount set default lair.next(1)"),
    case("REPLACEABLE_CODE", "routine lair.next(integer)", *_NEXT,
         "create index on sales.batches_0 (lair.next(id))"),
    case("REPLACEABLE_CODE", "routine lair.next(integer)", *_NEXT,
         "create operator lair.@@@ (function = lair.next, rightarg = integer)",
         "alter table sales.invoices add check ((operator(lair.@@@) id) = id)"),
    case("REPLACEABLE_CODE", "routine lair.audit()", "create schema lair",
         "create function lair.audit() returns trigger language plpgsql"
         " as 'begin return null; end'",
         "create trigger audit after insert on sales.invoices execute function lair.audit()",
         "alter function lair.audit() owner to worker_a"),
    case("REPLACEABLE_CODE", "domain lair.amount", "create schema lair",
         "create domain lair.amount as numeric", "alter table sales.invoices add other lair.amount",
         "alter domain lair.amount owner to worker_a"),
    case("REPLACEABLE_CODE", "routine lair.next(integer)", *_NEXT,
         "create domain sales.amount as integer check (lair.next(value) > 0)",
         "alter table sales.invoices add other sales.amount[]"),
    case("REPLACEABLE_CODE", "routine lair.next(integer)", *_NEXT,
         "create domain sales.amount as integer check (lair.next(value) > 0)",
         "create type sales.pair as (one integer, other sales.amount)",
         "alter table sales.invoices add other sales.pair"),
    case("SCHEMA_CREATE", "public", "grant create on schema public to public"),
    case("SCHEMA_CREATE", "sales", "grant create on schema sales to worker_b"),
    case("SCHEMA_CREATE", "Tools", 'create schema "Tools"',
         'grant create on schema "Tools" to worker_b',
         'alter role worker_a in database {db} set search_path = sales, "Tools"'),
    case("SCHEMA_CREATE", "worker_a", "create schema worker_a",
         "grant create on schema worker_a to worker_b"),
    case("PARTITION_PRIVILEGES", "billing_owner",
         "alter default privileges grant all on tables to worker_a", by=OWNER),
    case("PARTITION_PRIVILEGES", "billing_owner",
         "alter default privileges in schema sales grant truncate on tables to public", by=OWNER),
    # what is installed
    case("OBJECT_OWNER", "pgfence.receipts", "alter table pgfence.receipts owner to outsider"),
    case("OBJECT_OWNER", "pgfence.guards", "alter view pgfence.guards owner to dba"),
    case("OBJECT_OWNER", "pgfence.schema_version()",
         "alter function pgfence.schema_version() owner to dba"),
    case("OBJECT_OWNER", "pgfence", "alter schema pgfence owner to dba"),
    case("UNKNOWN_TRIGGER", "pgfence.receipts",
         "create function public.f() returns trigger language plpgsql as 'begin return null; end'",
         "create trigger mine after insert on pgfence.receipts execute function public.f()"),
    case("UNKNOWN_TRIGGER", "pgfence.refusals",
         "create rule mine as on delete to pgfence.refusals do instead nothing"),
    case("UNKNOWN_TRIGGER", "pgfence.policies",
         "create table public.child () inherits (pgfence.policies)"),
    case("UNKNOWN_OBJECT", "pgfence.mine(integer)",
         f"create function pgfence.mine(integer) returns integer {_BODY}"),
    case("UNKNOWN_OBJECT", "pgfence_registry.mine", "create table pgfence_registry.mine ()"),
    case("FUNCTION_MISSING", "pgfence._keep_fence_rising",
         "drop function pgfence._keep_fence_rising() cascade"),
    case("FUNCTION_CHANGED", "pgfence._refuse_direct_write()",
         "create or replace function pgfence._refuse_direct_write() returns trigger"
         " language plpgsql set search_path = pg_catalog, pg_temp as 'begin return null; end'"),
    case("FUNCTION_CHANGED", "pgfence.protect(regclass,text)",
         "alter function pgfence.protect(regclass, text) security definer"),
    case("FUNCTION_CHANGED", "pgfence._database_identity()",
         "alter function pgfence._database_identity() immutable"),
    case("ATTESTATION_CHANGED", "pgfence._guards_are_whole(text)",
         "create or replace function pgfence._guards_are_whole(p_resource text) returns boolean"
         " language plpgsql set search_path = pg_catalog, pg_temp as 'begin return true; end'"),
    case("FUNCTION_SEARCH_PATH", "pgfence.advance(text,text)",
         "alter function pgfence.advance(text, text) reset search_path"),
    case("FUNCTION_SEARCH_PATH", "pgfence.advance(text,text)",
         "alter function pgfence.advance(text, text) set search_path = public, pg_catalog"),
    case("FUNCTION_RIGHT", "pgfence.set_policy(text,text[],bigint,bigint,bigint)",
         "grant execute on all functions in schema pgfence to public"),
    case("FUNCTION_RIGHT", "pgfence.install_trust_bundle(text,text[])",
         "grant execute on function pgfence.install_trust_bundle to pgfence_app"),
    case("FUNCTION_RIGHT", "pgfence.advance(text,text)",
         "grant execute on function pgfence.advance to pgfence_app with grant option"),
    case("FUNCTION_RIGHT", "pgfence._guard_1()",
         "grant execute on function pgfence._guard_1() to public"),
    case("TABLE_RIGHT", "pgfence.fences", "grant update on pgfence.fences to worker_a"),
    case("TABLE_RIGHT", "pgfence.fences", "grant all on pgfence.fences to pgfence_auditor"),
    case("TABLE_RIGHT", "pgfence.guards", "grant select on pgfence.guards to public"),
    case("TABLE_RIGHT", "pgfence.guards",
         "grant select on pgfence.guards to pgfence_app with grant option"),
    case("TABLE_RIGHT", "pgfence.fences.highest_fence",
         "grant update (highest_fence) on pgfence.fences to worker_a"),
    case("TABLE_RIGHT", "pgfence.protected_tables_guard_id_seq",
         "grant all on sequence pgfence.protected_tables_guard_id_seq to worker_a"),
    case("SCHEMA_RIGHT", "pgfence", "grant create on schema pgfence to pgfence_app"),
    case("SCHEMA_RIGHT", "pgfence_registry", "grant usage on schema pgfence_registry to public"),
    case("MISSING_RIGHT", "pgfence.fenced_apply(text,bigint,text,text)",
         "revoke execute on function pgfence.fenced_apply from pgfence_app"),
    case("MISSING_RIGHT", "pgfence_registry.grants",
         "revoke select on pgfence_registry.grants from pgfence_auditor"),
    case("MISSING_RIGHT", "pgfence_registry",
         "revoke usage on schema pgfence_registry from pgfence_app"),
    case("MISSING_RIGHT", "pgfence._guard_2()", "alter table sales.batches owner to outsider"),
    case("DEFAULT_PRIVILEGES", "pgfence_owner",
         "alter default privileges for role pgfence_owner grant select on tables to worker_a"),
    case("DEFAULT_PRIVILEGES", "pgfence_owner",
         "alter default privileges for role pgfence_owner in schema pgfence"
         " grant execute on functions to public"),
    case("TRIGGER_CHANGED", "pgfence.fences", _DEMOTED.format("pgfence.fences")),
    case("TRIGGER_CHANGED", "pgfence.fences",
         "alter table pgfence.fences disable trigger look_at_commit"),
    case("TRIGGER_CHANGED", "pgfence.fences",
         "alter table pgfence.fences enable replica trigger keep_fence_rising"),
    case("TRIGGER_CHANGED", "pgfence.receipts", "drop trigger closed on pgfence.receipts"),
    case("TRIGGER_CHANGED", "pgfence.receipts",
         "drop trigger closed on pgfence.receipts;"
         "create trigger closed before insert on pgfence.receipts for each statement"
         " when (current_user <> 'pgfence_owner')"
         " execute function pgfence._refuse_direct_write();"
         "alter table pgfence.receipts enable always trigger closed"),
    case("TRIGGER_CHANGED", "pgfence.fences",
         "drop trigger look_at_commit on pgfence.fences;"
         "create constraint trigger look_at_commit after update on pgfence.fences"
         " deferrable initially immediate for each row when (new.commit_look is not null)"
         " execute function pgfence._look_at_commit();"
         "alter table pgfence.fences enable always trigger look_at_commit"),
    case("ROW_SECURITY", "pgfence.fences", "alter table pgfence.fences disable row level security"),
    case("ROW_SECURITY", "pgfence_registry.grants",
         "create policy mine on pgfence_registry.grants using (true)"),
    case("ROW_SECURITY", "pgfence.fences", "drop policy readable on pgfence.fences",
         "create policy readable on pgfence.fences using (true)"),
    case("UNLOGGED_TABLE", "pgfence.refusals", "alter table pgfence.refusals set unlogged"),
    # what is going on
    case("LATE_PARTITION", "sales.later",
         "create table sales.later partition of sales.batches default", by=OWNER),
    case("DROPPED_TABLE", "{dropped}", "drop table sales.invoices", by=OWNER),
    case("SHADOW", "it's", "select pgfence.shadow('it''s')"),
    case("PREPARED_TRANSACTION", "it's open",
         "begin; set local role pgfence_owner;"
         "update pgfence.configuration set version = version; prepare transaction 'it''s open'"),
]  # fmt: skip


#: What no SQL mends, or a person has to look at first: tests of their own, below.
WITHOUT_SQL = {
    "SERVER_VERSION",
    "NO_TRUST",
    "TRUST_ENDED",
    "TRUST_ENDS_SOON",
    "NO_REGISTRY",
    "HELD_UP",
    "CHANGE_HELD_UP",
    "UNTRUSTED_LANGUAGE",
    "EXTENSION",
}


def test_every_check_has_a_case() -> None:
    assert [check.code for check in CHECKS if not check.mend] == sorted(
        WITHOUT_SQL, key=[check.code for check in CHECKS].index
    )
    assert {case.code for case in CASES} | WITHOUT_SQL == {check.code for check in CHECKS}
    assert len({check.code for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("role", ["auditor", "dba", None])
def test_r26_nothing_weakens_a_good_installation(patient: Database, role: str | None) -> None:
    conn = patient.connect(role)
    assert doctor.examine(conn, _CHECKS).findings == ()
    report = doctor.examine(conn, CHECKS)
    version = conn.info.server_version
    old = any(r.minors[version // 10_000] > version % 10_000 for r in SECURITY_RELEASES)
    assert [f.code for f in report.findings] == ["SERVER_VERSION"] * old
    assert report.is_clean is not old
    assert report.checks == sum(check.since * 10_000 <= version for check in CHECKS)


def test_r26_server_without_a_security_release_is_told_which_one_and_why(
    patient: Database,
) -> None:
    conn = patient.connect("auditor")
    major, minor = divmod(conn.info.server_version, 10_000)
    (check,) = (check for check in CHECKS if check.code == "SERVER_VERSION")
    lacks = [r for r in SECURITY_RELEASES if r.minors[major] > minor]
    findings = doctor.examine(conn, [check]).findings
    assert [f.object for f in findings] == [f"{major}.{minor}"] * bool(lacks)
    for finding in findings:
        assert f"{major}.{lacks[0].minors[major]}" in str(finding.step)
        assert [r.closed for r in SECURITY_RELEASES if r.closed in finding.reason] == [
            r.closed for r in lacks
        ]


def test_security_releases_stand_with_the_latest_first() -> None:
    for later, earlier in itertools.pairwise(SECURITY_RELEASES):
        assert later.date > earlier.date
        assert all(later.minors[major] > earlier.minors[major] for major in earlier.minors)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_r26_planted_weakness_is_named_and_what_doctor_says_mends_it(
    patient: Database, case: Case
) -> None:
    with psycopg.connect(patient.dsn(case.by), autocommit=True) as conn:
        if conn.info.server_version < case.since * 10_000:
            pytest.skip(f"came with PostgreSQL {case.since}")
        ((dropped,),) = run(conn, "select 'sales.invoices'::regclass::oid::text").fetchall()
        names = {"db": patient.name, "dropped": dropped}
        for statement in case.plant:
            run(conn, statement.format(**names))
    patient.connect().execute("select pg_reload_conf()")
    wanted = (case.code, case.object.format(**names))
    support.wait_until(
        lambda: wanted in [(f.code, f.object) for f in examine(patient)], f"doctor says {wanted}"
    )
    findings = examine(patient)
    for finding in findings:
        assert finding.reason
        assert finding.sql, finding
        mend(patient, finding)
    support.wait_until(lambda: examine(patient) == (), f"nothing is left of {findings}")


@pytest.mark.parametrize("action", ["", "on delete set null"])
def test_r26_keys_that_no_change_of_a_protected_row_touches_are_not_named(
    patient: Database, action: str
) -> None:
    plant(
        patient,
        *_between("invoices", action),
        "create table lair.other (note integer references sales.notes on delete cascade)",
        "alter table lair.other owner to worker_b",
    )
    assert examine(patient) == ()


def plant(database: Database, *statements: str) -> None:
    for statement in statements:
        run(database.connect(), statement)


def test_r26_all_at_once_is_mended_in_the_order_in_which_doctor_says_it(
    patient: Database,
) -> None:
    tables = [relation.name for relation in installation().relations if relation.is_table]
    plant(
        patient,
        *(_DEMOTED.format(table) for table in (*tables, "sales.invoices")),
        "create role everybody",
        "grant billing_owner, pgfence_owner, pg_write_all_data to everybody",
        "grant everybody to worker_a",
        "alter role worker_b superuser createrole",
        "grant all on all tables in schema sales to worker_b",
        "grant all on all tables in schema pgfence to public",
        "grant all on all functions in schema pgfence to public",
        "drop function pgfence._refuse_direct_write() cascade",
        "alter function pgfence.protect(regclass, text) owner to worker_b",
        "alter table sales.batches_1 owner to worker_b",
        "alter table sales.invoices set unlogged",
    )
    findings = examine(patient)
    assert [f.severity for f in findings] == sorted(
        (f.severity for f in findings), key=list(Severity).index
    )
    for finding in findings:
        mend(patient, finding)
    assert examine(patient) == ()


_DROP = "alter table {0} drop column batch_date"
_RENAME = "alter table {0} rename batch_date to day"
_VIRTUAL = "alter table {0} add batch_date date generated always as (null)"
_BACK = "alter table {0} add batch_date date"


@pytest.mark.parametrize(
    ("table", "changes", "remedy"),
    [
        ("sales.invoices", [_DROP], [_BACK]),
        ("sales.invoices", [_RENAME], ["alter table {0} rename day to batch_date"]),
        ("sales.batches", [_RENAME], ["alter table {0} rename day to batch_date"]),
        ("sales.invoices", [_DROP, _VIRTUAL], [_DROP, _BACK]),
    ],
    ids=["dropped", "renamed", "renamed, partitioned", "virtual (18)"],
)
def test_r26_column_that_names_the_resource_is_missed(
    patient: Database, table: str, changes: list[str], remedy: list[str]
) -> None:
    owner = patient.connect(OWNER)
    if _VIRTUAL in changes and owner.info.server_version < 180000:
        pytest.skip("virtual columns came with PostgreSQL 18")
    for change in changes:
        run(owner, change.format(table))
    (finding,) = examine(patient)
    assert (finding.code, finding.object) == ("GUARD_IMPOSSIBLE", table)
    assert finding.reason == f'{table} has no stored column "batch_date", which names the resource'
    assert "column" in str(finding.step)
    with refused("PF304"):
        mend(patient, finding)
    for change in remedy:
        run(owner, change.format(table))
    mend(patient, finding)
    assert examine(patient) == ()


def test_r26_what_mends_is_quoted(patient: Database) -> None:
    odd = '"Odd ""name"" %s {x}"'
    plant(
        patient,
        f"create role {odd} login password '{support.ROLE_PASSWORD}'",
    )
    try:
        plant(
            patient,
            f"create table sales.{odd} (batch date)",
            f"select pgfence.protect('sales.{odd}', 'x''s/{{batch}}')",
            f"alter table sales.{odd} owner to billing_owner",
            f"grant all on sales.{odd} to {odd}",
            f"grant select on pgfence.fences to {odd}",
            f"create function pgfence.{odd}() returns integer {_BODY}",
            f"alter role {odd} set synchronous_commit = off",
            f"grant pgfence_registry, pg_signal_backend to {odd}",
        )
        findings = examine(patient)
        assert {f.code for f in findings} == {
            "GUARD_NOT_WHOLE",
            "MISSING_RIGHT",
            "OBJECT_OWNER",
            "TABLE_RIGHT",
            "UNKNOWN_OBJECT",
            "TRUNCATE_RIGHT",
            "REFERENCES_RIGHT",
            "SYNCHRONOUS_COMMIT",
        }
        for finding in findings:
            mend(patient, finding)
        assert examine(patient) == ()
    finally:
        plant(patient, f"drop owned by {odd}", f"drop role {odd}")


_BUNDLE_ENDS = "update pgfence.trust_bundles set expires_at = now() + interval '{}'"
_KEY_ENDS = "update pgfence.trust_keys set expires_at = now() + interval '{}' where purpose = '{}'"
_ANOTHER_KEY = (
    "insert into pgfence.trust_keys select bundle_version, left(encode(sha256(key), 'hex'), 16),"
    " purpose, key, not_before, now() + interval '1 year'"
    " from pgfence.trust_keys, decode(repeat('ab', 32), 'hex') as key where purpose = '{}'"
)


@pytest.mark.parametrize(
    ("changes", "code", "named", "command"),
    [
        ([_BUNDLE_ENDS.format("29 days")], "TRUST_ENDS_SOON", "trust bundle 1", "propose"),
        ([_BUNDLE_ENDS.format("31 days")], None, "", ""),
        ([_BUNDLE_ENDS.format("-1 second")], "TRUST_ENDED", "trust bundle 1", "propose"),
        ([_KEY_ENDS.format("29 days", "grant")], "TRUST_ENDS_SOON", "grant key", "--add grant:"),
        ([_KEY_ENDS.format("-1 day", "grant")], "TRUST_ENDED", "grant key", "--add grant:"),
        ([_KEY_ENDS.format("29 days", "root")], "TRUST_ENDS_SOON", "root key", "--add root:"),
        ([_KEY_ENDS.format("31 days", "status")], None, "", ""),
        # replaced in time
        ([_KEY_ENDS.format("1 day", "grant"), _ANOTHER_KEY.format("grant")], None, "", ""),
        ([_KEY_ENDS.format("-1 day", "root"), _ANOTHER_KEY.format("root")], None, "", ""),
        (
            [
                _KEY_ENDS.format("1 day", "root"),
                _ANOTHER_KEY.format("root"),
                "update pgfence.trust_bundles set root_threshold = 2",
            ],
            "TRUST_ENDS_SOON",
            "root key",
            "--add root:",
        ),
    ],
)
@pytest.mark.rule("R31")
def test_r31_trust_that_ends_is_named_unless_it_is_replaced_in_time(
    patient: Database, changes: list[str], code: str | None, named: str, command: str
) -> None:
    conn = patient.connect("dba")
    run(conn, "set role pgfence_owner")
    for change in changes:
        run(conn, change)
    findings = examine(patient)
    assert [f.code for f in findings] == [code] * (code is not None)
    for finding in findings:
        assert finding.object.startswith(named)
        assert command in str(finding.step)


@pytest.mark.rule("R31")
def test_r31_trust_that_was_never_installed_is_named(patient: Database) -> None:
    conn = patient.connect("dba")
    run(conn, "set role pgfence_owner")
    run(conn, "delete from pgfence.trust_keys")
    run(conn, "delete from pgfence.trust_bundles")
    (finding,) = examine(patient)
    assert (finding.code, finding.object) == ("NO_TRUST", patient.name)
    assert "pgfence trust init" in str(finding.step)


def test_r28_prefix_in_shadow_is_a_note_with_the_way_to_look_at_the_evidence_first(
    patient: Database,
) -> None:
    run(patient.connect("dba"), "select pgfence.shadow('trial/')")
    with psycopg.connect(patient.dsn("auditor"), autocommit=True) as conn:
        report = doctor.examine(conn, _CHECKS)
    (note,) = report.findings
    assert (note.severity, note.object) == (Severity.NOTE, "trial/")
    assert note.sql == ("select pgfence.enforce('trial/');",)
    assert "pgfence rollout enforce trial/" in str(note.step)
    assert report.is_clean


def test_r26_no_registry_is_a_note_that_does_not_count(clinic: Database) -> None:
    with psycopg.connect(clinic.dsn("auditor"), autocommit=True) as conn:
        report = doctor.examine(conn, _CHECKS)
    (note,) = report.findings
    assert (note.code, note.object, note.sql) == ("NO_REGISTRY", "clinic", ())
    assert "pgfence registry serve" in str(note.step)
    assert report.is_clean


def test_r26_session_of_doctor_itself_is_no_registry(clinic: Database) -> None:
    # Nothing stays connected: the database is what the others are copied from.
    with psycopg.connect(clinic.dsn(), autocommit=True) as superuser:
        superuser.execute("grant pgfence_auditor to registry")
        try:
            with psycopg.connect(clinic.dsn("registry"), autocommit=True) as conn:
                assert [f.code for f in doctor.examine(conn, _CHECKS).findings] == ["NO_REGISTRY"]
        finally:
            superuser.execute("revoke pgfence_auditor from registry")


def test_r26_untrusted_languages_and_extensions_that_reach_outside_are_notes(
    patient: Database,
) -> None:
    plant(
        patient,
        "create language plwild handler plpgsql_call_handler",
        "update pg_extension set extname = 'dblink' where extname = 'plpgsql'",
    )
    found = [(f.code, f.object, f.severity) for f in examine(patient)]
    assert found == [
        ("UNTRUSTED_LANGUAGE", "plwild", Severity.NOTE),
        ("EXTENSION", "dblink", Severity.NOTE),
    ]


def test_r26_who_may_not_look_is_told_what_was_not_looked_at(patient: Database) -> None:
    plant(patient, "grant trigger on sales.invoices to worker_b")
    report = doctor.examine(patient.connect("worker_a"), _CHECKS)
    assert [f.code for f in report.findings] == ["GUARD_NOT_WHOLE"]
    assert {u.reason for u in report.unseen} == {
        "permission denied for table workload_roles",
        "permission denied for view workload_logins",
        "permission denied for table protected_tables",
        "permission denied for table rollout",
        "permission denied for view _held_rows",
        "permission denied for table trust_bundles",
        "permission denied for table trust_keys",
        "permission denied for table configuration",
        "permission denied for function attestation_source",
    }
    assert not report.is_clean
    plant(patient, "revoke trigger on sales.invoices from worker_b")
    again = doctor.examine(patient.connect("worker_a"), _CHECKS)
    assert again.findings == ()
    assert not again.is_clean


def test_r26_doctor_changes_nothing_and_leaves_the_session_as_it_was(patient: Database) -> None:
    conn = patient.connect()
    doctor.examine(conn, _CHECKS)
    settings = "select current_setting('search_path'), current_setting('transaction_read_only')"
    assert run(conn, settings).fetchone() == ('"$user", public', "off")
