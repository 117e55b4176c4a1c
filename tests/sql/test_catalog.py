"""What the catalog must say of everything that pgfence installs (R26, R27).

Each case is a query for what must not be, and a statement that makes just that: the query finds
nothing in an installed database, and finds the planted fault.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests import support

FUNCTIONS = """
    select p.oid::regprocedure::text
      from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
     where n.nspname in ('pgfence', 'pgfence_registry') and
"""
EXECUTE = """
    exists (
        select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
          left join pg_roles as r on r.oid = a.grantee
         where a.grantee <> p.proowner and
"""
RELATIONS = """
    select c.oid::regclass::text
      from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
     where n.nspname in ('pgfence', 'pgfence_registry') and
"""
GROUPS = "('pgfence_app', 'pgfence_registry', 'pgfence_auditor')"
BODY = "language sql set search_path = pg_catalog, pg_temp as 'select 1'"


@dataclass(frozen=True)
class Case:
    """query finds nothing, until fault is done by pgfence_owner: then it finds `found`."""

    name: str
    query: str
    fault: str
    found: str


CASES = [
    Case(
        "every function pins search_path, with pg_temp last",
        f"{FUNCTIONS} ('search_path=pg_catalog, pg_temp' = any (p.proconfig)) is not true",
        "alter function pgfence.schema_version() set search_path = pg_catalog",
        "pgfence.schema_version()",
    ),
    Case(
        "every function says what it guarantees",
        f"{FUNCTIONS} coalesce(obj_description(p.oid, 'pg_proc'), '') = ''",
        "comment on function pgfence.schema_version() is null",
        "pgfence.schema_version()",
    ),
    Case(
        "PUBLIC may execute nothing, and only the three groups may execute anything",
        f"{FUNCTIONS} {EXECUTE} (r.rolname is null or r.rolname not in {GROUPS}))",
        "grant execute on function pgfence.schema_version() to public",
        "pgfence.schema_version()",
    ),
    Case(
        "a right is never handed on",
        f"{FUNCTIONS} {EXECUTE} a.is_grantable)",
        "grant execute on function pgfence.schema_version() to pgfence_app with grant option",
        "pgfence.schema_version()",
    ),
    Case(
        "nobody but the owner may execute an internal function",
        rf"{FUNCTIONS} p.proname like '\_%' and {EXECUTE} true)",
        f"create function pgfence._planted() returns integer {BODY};"
        "grant execute on function pgfence._planted() to pgfence_app",
        "pgfence._planted()",
    ),
    Case(
        "only entry points and triggers run with the owner's rights",
        rf"{FUNCTIONS} p.prosecdef and p.proname like '\_%' and p.prorettype <> 'trigger'::regtype",
        f"create function pgfence._planted() returns integer security definer {BODY}",
        "pgfence._planted()",
    ),
    Case(
        "what only the owner may call asks who calls, for a restore may lose the privileges",
        f"{FUNCTIONS} p.prosecdef and p.prorettype <> 'trigger'::regtype and not {EXECUTE} true)"
        " and p.prosrc not like '%begin\n    perform pgfence._owner_only();%'",
        "revoke execute on function pgfence.find_receipt(text, text, bigint)"
        " from pgfence_app, pgfence_auditor",
        "pgfence.find_receipt(text,text,bigint)",
    ),
    Case(
        "protect runs with the rights of the table's owner, who calls it",
        f"{FUNCTIONS} p.proname = 'protect' and p.prosecdef",
        "alter function pgfence.protect(regclass, text) security definer",
        "pgfence.protect(regclass,text)",
    ),
    Case(
        "pgfence_owner owns every function",
        f"{FUNCTIONS} p.proowner <> 'pgfence_owner'::regrole",
        f"reset role; create function pgfence.planted() returns integer {BODY}",
        "pgfence.planted()",
    ),
    Case(
        "pgfence_owner owns every table, index, type and sequence",
        f"{RELATIONS} c.relowner <> 'pgfence_owner'::regrole",
        "reset role; create table pgfence.planted ()",
        "pgfence.planted",
    ),
    Case(
        "others may at most read a table, and only the three groups may",
        f"""{RELATIONS} exists (
                select from aclexplode(c.relacl) as a left join pg_roles as r on r.oid = a.grantee
                 where a.grantee <> c.relowner
                   and (a.privilege_type <> 'SELECT' or a.is_grantable
                        or r.rolname is null or r.rolname not in {GROUPS}))""",
        "grant update on pgfence.configuration to pgfence_auditor",
        "pgfence.configuration",
    ),
    Case(
        "every table says what it is",
        f"{RELATIONS} c.relkind in ('r', 'p', 'v') and coalesce(obj_description(c.oid), '') = ''",
        "comment on table pgfence.configuration is null",
        "pgfence.configuration",
    ),
    Case(
        "a name is unique among the functions, so no argument type picks another one",
        f"""{FUNCTIONS} exists (
                select from pg_proc as q
                 where q.pronamespace = p.pronamespace and q.proname = p.proname and q.oid <> p.oid)
        """,
        f"create function pgfence.schema_version(integer) returns integer {BODY}",
        "pgfence.schema_version(integer)",
    ),
    Case(
        "others may look names up in the schemas, and make nothing there",
        """
        select n.nspname::text from pg_namespace as n, aclexplode(n.nspacl) as a
         where n.nspname in ('pgfence', 'pgfence_registry') and a.grantee <> n.nspowner
           and (a.privilege_type <> 'USAGE' or a.is_grantable or a.grantee = 0)
        """,
        "grant create on schema pgfence to pgfence_app",
        "pgfence",
    ),
    Case(
        "the groups are NOLOGIN and hold nothing else",
        """
        select r.rolname::text from pg_roles as r
         where r.rolname in ('pgfence_owner', 'pgfence_app', 'pgfence_registry', 'pgfence_auditor')
           and (r.rolcanlogin or r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolreplication
                or r.rolbypassrls
                or exists (select from pg_auth_members as m where m.member = r.oid))
        """,
        "reset role; alter role pgfence_auditor bypassrls",
        "pgfence_auditor",
    ),
]


@pytest.mark.rule("R26", "R27")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_r27_the_catalog_shows_that(case: Case, database: support.Database) -> None:
    with database.connect(autocommit=False) as conn:
        conn.execute("set local role pgfence_owner")
        assert conn.execute(case.query).fetchall() == []
        conn.execute(case.fault)
        assert (case.found,) in conn.execute(case.query).fetchall()
        conn.rollback()  # the roles belong to the cluster
