"""What doctor looks for: one entry a rule, in the order in which findings are mended.

A new rule is a new entry: a query for what must not be (search_path is pg_catalog, so names of other
schemas come out qualified; quote_ident, format and regclass quote them), what to say about a row
that it finds, and the statements that mend it. It needs a case in tests/sql/test_doctor.py, and
`python tools/doctor_page.py` writes docs/doctor.md.
"""

from dataclasses import dataclass

from pgfence.audit.doctor import Check, Severity
from pgfence.model.bundle import RENEWAL_US

ERROR, WARNING, NOTE = Severity


# PostgreSQL itself


@dataclass(frozen=True, slots=True)
class SecurityRelease:
    """Minor releases of one day that closed a way round any right. minors: by major version."""

    date: str
    minors: dict[int, int]
    closed: str


#: When somebody last looked for newer ones.
SECURITY_RELEASES_LOOKED_AT = "2026-11-29"
#: Only holes by which a role that may log in does more than its rights say; the latest first.
SECURITY_RELEASES = (
    SecurityRelease(
        "2026-11-12",
        {14: 25, 15: 20, 16: 16, 17: 12, 18: 7},
        "CVE-2026-6460: who may create a type or a table runs code as the server's system user",
    ),
    SecurityRelease(
        "2026-08-13",
        {14: 24, 15: 19, 16: 15, 17: 11, 18: 6},
        "CVE-2026-14680 and CVE-2026-16239: any role runs code as the server's system user",
    ),
    SecurityRelease(
        "2026-05-14",
        {14: 23, 15: 18, 16: 14, 17: 10, 18: 4},
        "CVE-2026-6473: any role overwrites the server's memory",
    ),
)


def _version_query() -> str:
    rows = ", ".join(
        f"({major}, {minor}, date '{release.date}', '{release.closed.replace(chr(39), chr(39) * 2)}')"
        for release in SECURITY_RELEASES
        for major, minor in release.minors.items()
    )
    return f"""
        select v.major || '.' || v.minor as object, v.major || '.' || max(r.minor) as wanted,
               string_agg(r.closed, '; ' order by r.at desc) as open
          from (select current_setting('server_version_num')::integer / 10000 as major,
                       current_setting('server_version_num')::integer % 10000 as minor) as v
          join (values {rows}) as r (major, minor, at, closed)
            on r.major = v.major and r.minor > v.minor
         group by v.major, v.minor
    """


def _setting(name: str, bad: str, good: str) -> str:
    """Where a parameter has a value that it must not have: for the server, or for who logs in."""
    return f"""
        with {_APPLICATION}
        select 'server' as object, '{name} = ' || s.setting as has, case
                   when s.source in ('command line', 'environment variable') then '{{}}'
                   else array['alter system set {name} = {good};', 'select pg_reload_conf();']
               end as statements
          from pg_settings as s
         where s.name = '{name}' and s.setting in ({bad})
           and s.source not in ('database', 'user', 'database user', 'client', 'session')
        union all
        select concat_ws(' in ', 'role ' || quote_ident(a.rolname), 'database ' || quote_ident(d.datname)), c,
               array[case
                   when s.setrole = 0 and s.setdatabase = 0 then 'alter role all reset {name};'
                   when s.setrole = 0 then format('alter database %I reset {name};', d.datname)
                   else format('alter role %I%s reset {name};', a.rolname, ' in database ' || quote_ident(d.datname))
               end]
          from pg_db_role_setting as s
          cross join unnest(s.setconfig) as c
          left join pg_database as d on d.oid = s.setdatabase
          left join application as a on a.oid = s.setrole
         where split_part(c, '=', 1) = '{name}' and lower(split_part(c, '=', 2)) in ({bad})
           and (s.setdatabase = 0 or d.datname = current_database())
           and (s.setrole = 0 or a.oid is not null)
    """


# Trust

_RENEWAL_DAYS = RENEWAL_US // 86_400_000_000


def _trust_ends(after: str, by: str) -> str:
    """What of the trust bundle in force ends between two times, and is not replaced by then."""
    return f"""
        with bundle as (
            select * from pgfence.trust_bundles order by version desc limit 1
        ), ends as (
            select 'trust bundle ' || b.version as object, b.expires_at, 'every grant is refused' as so,
                   'pgfence trust propose' as command
              from bundle as b
             union all
            select k.purpose || ' key ' || k.kid, k.expires_at,
                   case k.purpose when 'root' then 'no trust bundle can be installed'
                                  else 'whatever it signed is refused, and no other key is left' end,
                   format('pgfence trust propose --add %s:KEY', k.purpose)
              from bundle as b join pgfence.trust_keys as k on k.bundle_version = b.version and k.expires_at < b.expires_at
             where (select count(*) from pgfence.trust_keys as o
                     where o.bundle_version = b.version and o.purpose = k.purpose
                       and o.not_before <= k.expires_at and o.expires_at > {by})
                   < case k.purpose when 'root' then b.root_threshold else 1 end
        )
        select object, date_trunc('second', expires_at)::text as ends, so, command
          from ends where expires_at > {after} and expires_at <= {by}
    """


# Who is who

_OURS = "('pgfence'::regnamespace, 'pgfence_registry'::regnamespace)"
_GROUPS = "('pgfence_app', 'pgfence_registry', 'pgfence_auditor')"

#: The roles of applications: those of workloads, and those that sign.
_APPLICATION = """application as (
    select x.oid, x.rolname, string_agg(x.does, ' and ' order by x.does) as does
      from (select l.role as oid, l.role_name as rolname, 'acts for workload ' || l.workload as does
              from pgfence.workload_logins as l
             union
            select r.oid, r.rolname, 'signs grants'
              from pg_roles as r
             where r.rolcanlogin and not r.rolsuper and pg_has_role(r.oid, 'pgfence_registry', 'USAGE')) as x
     group by x.oid, x.rolname
)"""

#: What such a role is (itself), and what it can become or inherit from, by way of which membership.
#: The three groups for applications are looked at by GROUP_MEMBER.
_REACH = f"""{_APPLICATION}, reach as (
    select a.rolname, a.does, a.oid as target, '' as through, null as revoke
      from application as a
     union all
    select a.rolname, a.does, t.oid, ', as a member of ' || quote_ident(g.rolname),
           format('revoke %I from %I%s cascade;', g.rolname, a.rolname, ' granted by ' || quote_ident(b.rolname))
      from application as a
      join pg_auth_members as m on m.member = a.oid
      join pg_roles as g on g.oid = m.roleid and g.rolname not in {_GROUPS}
      left join pg_roles as b on b.oid = m.grantor
      join pg_roles as t on t.oid = g.oid or not g.rolsuper and pg_has_role(g.oid, t.oid, 'MEMBER')
)"""

#: Who is granted a right: `a` is a row of aclexplode.
_GRANTEE = "case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end"
_FOR_APPLICATIONS = """(a.grantee = 0 or a.grantee <> 10 and exists (
    select from application as x where pg_has_role(x.oid, a.grantee, 'MEMBER')))"""


def _attribute(code: str, attribute: str, severity: Severity, why: str) -> Check:
    """Application roles with an attribute, or that may become a role with it."""
    column = {"superuser": "rolsuper"}.get(attribute, f"rol{attribute}")
    return Check(
        code,
        severity,
        f"An application role is {attribute.upper()}, or may become a role that is. {why}",
        f"""
        with {_REACH}
        select r.rolname as object, r.does, quote_ident(t.rolname) as target, r.through,
               coalesce(r.revoke, format('alter role %I no{attribute};', r.rolname)) as mend
          from reach as r join pg_roles as t on t.oid = r.target
         where t.{column}
        """,
        f"{{object}} ({{does}}) can act as {{target}}{{through}}, which is {attribute.upper()}. {why}",
        ("{mend}",),
    )


def _predefined(code: str, role: str, severity: Severity, why: str) -> Check:
    """Application roles that are members of one of PostgreSQL's own roles."""
    return Check(
        code,
        severity,
        f"An application role is a member of `{role}`, by any path. {why}",
        f"""
        with {_REACH}
        select r.rolname as object, r.does, r.through, r.revoke as mend
          from reach as r join pg_roles as t on t.oid = r.target
         where t.rolname = '{role}' and r.revoke is not null
               {"and r.does <> 'signs grants'" if role == "pg_signal_backend" else ""}
        """,
        f"{{object}} ({{does}}) has the rights of {role}{{through}}. {why}",
        ("{mend}",),
    )


# What is installed


def _installed(kind: str) -> str:
    """The functions, relations or triggers that this package installs, as the table `e`."""
    columns = {
        "functions": "name text, body text, definer boolean, volatility text, roles jsonb, source text",
        "relations": "name text, is_table boolean, roles jsonb",
        "triggers": '"table" text, name text, function text, type integer, has_condition boolean, '
        "is_deferred boolean, source text",
    }[kind]
    return (
        "jsonb_to_recordset(current_setting('pgfence.installation')::jsonb -> "
        f"'{kind}') as e ({columns})"
    )


_IS_GUARD = "p.proname ~ '^_guard_[0-9]+$'"
_FUNCTIONS = f"""
    pg_proc as p
    join pg_namespace as n on n.oid = p.pronamespace and n.oid in {_OURS}
"""
_RELATIONS = f"""
    pg_class as c
    join pg_namespace as n on n.oid = c.relnamespace and n.oid in {_OURS}
"""
_OF_GUARDS = """
    pgfence.guards as g
    join pg_class as c on c.oid = g.relation
    join pg_roles as o on o.oid = c.relowner
"""

#: Protected tables, and those of which foreign keys change rows along with theirs: `columns` alone are
#: updated, or (null) rows are deleted too. Who refers to such a row has a say in that transaction.
_CHANGED = f"""changed (protected, relation, columns) as (
    select c.oid, c.oid, null::smallint[] from {_OF_GUARDS}
     union
    select h.protected, k.conrelid, case when h.columns is not null or k.confdeltype <> 'c' then k.conkey end
      from changed as h
      join pg_constraint as k on k.confrelid = h.relation and k.contype = 'f'
       and (h.columns is null or k.confkey && h.columns)
     where k.confupdtype in ('c', 'n', 'd') or h.columns is null and k.confdeltype in ('c', 'n', 'd')
)"""

CHECKS: tuple[Check, ...] = (
    # PostgreSQL itself
    Check(
        "SERVER_VERSION",
        ERROR,
        "PostgreSQL lacks a security release that closed a way round any right. The list of releases "
        f"is of {SECURITY_RELEASES_LOOKED_AT}.",
        _version_query(),
        "PostgreSQL {object} lacks fixes: {open}",
        (),
        step="Update PostgreSQL to {wanted} or later, and restart it.",
    ),
    Check(
        "FSYNC",
        ERROR,
        "`fsync` is off. A crash of the machine corrupts the database, fences and receipts included.",
        _setting("fsync", "'off'", "on"),
        "{object}: {has}; after a crash of the machine nothing here can be relied upon",
        ("{statements}",),
        step="Given on the server's command line or in its environment, change it there.",
    ),
    Check(
        "FULL_PAGE_WRITES",
        ERROR,
        "`full_page_writes` is off. A crash of the machine leaves half-written pages.",
        _setting("full_page_writes", "'off'", "on"),
        "{object}: {has}; a crash of the machine may leave half-written pages of fences and receipts",
        ("{statements}",),
        step="Given on the server's command line or in its environment, change it there.",
    ),
    Check(
        "SYNCHRONOUS_COMMIT",
        WARNING,
        "`synchronous_commit` is off, for the server, the database or an application role. After a "
        "crash, segments and grants that were acknowledged may be gone (R47).",
        _setting("synchronous_commit", "'off', 'false', 'no', '0'", "on"),
        "{object}: {has}; after a crash, acknowledged segments and grants may be gone",
        ("{statements}",),
        step="Given on the server's command line or in its environment, change it there.",
    ),
    Check(
        "EVIDENCE_NOT_LOGGED",
        WARNING,
        "`log_min_messages` is `fatal` or `panic`, so that the server logs no refusal (R18).",
        _setting("log_min_messages", "'fatal', 'panic'", "warning"),
        "{object}: {has}; refusals leave no line in the server's log",
        ("{statements}",),
        step="Given on the server's command line or in its environment, change it there.",
    ),
    Check(
        "REPLICATION_ROLE",
        WARNING,
        "`session_replication_role` is set to something other than `origin`: ordinary triggers and "
        "foreign keys do not fire. Those of pgfence do.",
        _setting("session_replication_role", "'replica', 'local'", "origin"),
        "{object}: {has}; triggers and foreign keys of the application do not fire",
        ("{statements}",),
        step="Given on the server's command line or in its environment, change it there.",
    ),
    Check(
        "PARAMETER_RIGHT",
        WARNING,
        "An application role, or everybody, may set a parameter that switches off triggers, checks "
        "or the log, or may ALTER SYSTEM.",
        f"""
        with {_APPLICATION}
        select p.parname as object, {_GRANTEE} as grantee, a.privilege_type as privilege
          from pg_parameter_acl as p cross join aclexplode(p.paracl) as a
         where {_FOR_APPLICATIONS}
           and (a.privilege_type = 'ALTER SYSTEM' or p.parname in (
               'session_replication_role', 'log_min_messages', 'log_min_error_statement', 'zero_damaged_pages',
               'allow_system_table_mods', 'session_preload_libraries', 'dynamic_library_path'))
        """,
        "{grantee} has the right {privilege} on the parameter {object}",
        ("revoke {privilege} on parameter {object} from {grantee} cascade;",),
        since=15,
    ),
    # application roles
    _attribute("SUPERUSER", "superuser", ERROR, "Nothing holds a superuser."),
    _attribute(
        "CREATEROLE",
        "createrole",
        ERROR,
        "It changes passwords of workloads and, before PostgreSQL 16, grants itself any role.",
    ),
    _attribute(
        "REPLICATION",
        "replication",
        ERROR,
        "It copies the whole database with every signed grant, and fills the disk with a slot.",
    ),
    _attribute(
        "BYPASSRLS",
        "bypassrls",
        ERROR,
        "Row security, which keeps others from locking rows of pgfence, does not hold it.",
    ),
    _predefined(
        "WRITE_SERVER_FILES",
        "pg_write_server_files",
        ERROR,
        "Who writes the server's files becomes its superuser.",
    ),
    _predefined(
        "EXECUTE_SERVER_PROGRAM",
        "pg_execute_server_program",
        ERROR,
        "Who runs programs on the server becomes its superuser.",
    ),
    _predefined(
        "READ_SERVER_FILES",
        "pg_read_server_files",
        WARNING,
        "It reads the server's files, past any right in the database.",
    ),
    _predefined(
        "WRITE_ALL_DATA",
        "pg_write_all_data",
        WARNING,
        "It may write and lock every table, where only triggers still stand in the way, and set sequences.",
    ),
    _predefined(
        "MAINTAIN",
        "pg_maintain",
        WARNING,
        "It may lock every table, and so hold up everybody.",
    ),
    _predefined(
        "SIGNAL_BACKEND",
        "pg_signal_backend",
        WARNING,
        "It ends the sessions of other owners and of the registry.",
    ),
    _predefined(
        "CREATE_SUBSCRIPTION",
        "pg_create_subscription",
        WARNING,
        "It lets rows in by logical replication, past the application.",
    ),
    Check(
        "FILE_FUNCTION",
        ERROR,
        "An application role, or everybody, may call a function that writes the server's files.",
        f"""
        with {_APPLICATION}
        select p.oid::regprocedure::text as object, {_GRANTEE} as grantee
          from pg_proc as p cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
         where p.pronamespace = 'pg_catalog'::regnamespace
           and p.proname in ('lo_export', 'pg_file_write', 'pg_file_rename', 'pg_file_unlink')
           and {_FOR_APPLICATIONS}
        """,
        "{grantee} may call {object}: who writes the server's files becomes its superuser",
        ("revoke execute on function {object} from {grantee} cascade;",),
    ),
    # groups and memberships
    Check(
        "GROUP_NOT_PLAIN",
        ERROR,
        "One of the four groups of pgfence can log in, or has an attribute such as CREATEROLE.",
        """
        select r.rolname as object
          from pg_roles as r
         where r.rolname in ('pgfence_owner', 'pgfence_app', 'pgfence_registry', 'pgfence_auditor')
           and (r.rolcanlogin or r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolreplication
                or r.rolbypassrls)
        """,
        "{object} is a group, and must neither log in nor have a right of its own",
        (
            "alter role {object} nologin nosuperuser nocreatedb nocreaterole noreplication "
            "nobypassrls;",
        ),
    ),
    Check(
        "GROUP_MEMBER",
        ERROR,
        "One of the four groups of pgfence is a member of another role: all its members, or "
        "pgfence's own functions, have the rights of that.",
        """
        select m.member::regrole::text as object, m.roleid::regrole::text as of_role,
               coalesce(' granted by ' || quote_ident(b.rolname), '') as granted_by
          from pg_auth_members as m join pg_roles as r on r.oid = m.member
          left join pg_roles as b on b.oid = m.grantor
         where r.rolname in ('pgfence_owner', 'pgfence_app', 'pgfence_registry', 'pgfence_auditor')
        """,
        "{object} is a member of {of_role}, and passes its rights on",
        ("revoke {of_role} from {object}{granted_by} cascade;",),
    ),
    Check(
        "OWNER_MEMBER",
        ERROR,
        "An application role can act as `pgfence_owner`, by any path of memberships.",
        f"""
        with {_REACH}
        select r.rolname as object, r.does, r.through, r.revoke as mend
          from reach as r where r.target = 'pgfence_owner'::regrole and r.revoke is not null
        """,
        "{object} ({does}) can act as pgfence_owner{through}, and change all of pgfence",
        ("{mend}",),
    ),
    Check(
        "ADMIN_OPTION",
        WARNING,
        "An application role may grant others membership in a group of pgfence.",
        f"""
        with {_APPLICATION}
        select a.rolname as object, a.does, m.roleid::regrole::text as of_role,
               format('revoke admin option for %s from %I%s cascade;', m.roleid::regrole, a.rolname,
                      ' granted by ' || quote_ident(b.rolname)) as mend
          from application as a join pg_auth_members as m on m.member = a.oid and m.admin_option
          join pg_roles as g on g.oid = m.roleid and g.rolname in {_GROUPS}
          left join pg_roles as b on b.oid = m.grantor
        """,
        "{object} ({does}) may let others into {of_role}",
        ("{mend}",),
    ),
    Check(
        "WORKLOAD_SIGNS",
        WARNING,
        "A role acts for a workload and is in `pgfence_registry`: who asks and who signs are not "
        "kept apart.",
        """
        select l.role_name as object, l.workload, quote_ident(l.role_name) as role, g.rolname as of_role,
               coalesce(' granted by ' || quote_ident(b.rolname), '') as granted_by
          from pgfence.workload_logins as l
          join pg_auth_members as m on m.member = l.role
          join pg_roles as g on g.oid = m.roleid and not g.rolsuper
          left join pg_roles as b on b.oid = m.grantor
         where pg_has_role(g.oid, 'pgfence_registry', 'MEMBER')
        """,
        "{object} acts for workload {workload}, and signs grants as a member of {of_role}",
        ("revoke {of_role} from {role}{granted_by} cascade;",),
    ),
    Check(
        "SEVERAL_WORKLOADS",
        ERROR,
        "A login role acts for more than one workload, so it is not known for whom it acts (R6).",
        """
        select l.role_name as object, string_agg(distinct l.workload, ', ' order by l.workload) as workloads,
               max(case when l.is_prefix then format('select pgfence.remove_workload_pattern(%L);', l.entry || '*')
                        else format('select pgfence.remove_workload(%L, nullif(%L, ''''));', l.entry, l.authenticated_as)
                   end) as mend
          from pgfence.workload_logins as l
         where (select count(*) from pgfence.workload_logins as o
                 where o.role = l.role
                   and (o.authenticated_as = l.authenticated_as or '' in (o.authenticated_as, l.authenticated_as))) > 1
         group by l.role_name
        """,
        "{object} acts for several workloads: {workloads}",
        ("{mend}",),
        run_as="pgfence_owner",
        step="Then add the role to its one workload with pgfence.add_workload.",
    ),
    Check(
        "WORKLOAD_WITHOUT_ROLE",
        WARNING,
        "The login role of a workload does not exist. Whoever creates a role of that name gets the "
        "workload's identity.",
        """
        select w.role_name as object, w.workload,
               format('select pgfence.remove_workload(%L, nullif(%L, ''''));', w.role_name, w.authenticated_as) as mend
          from pgfence.workload_roles as w
         where not w.is_prefix and not exists (select from pg_roles as r where r.rolname = w.role_name)
        """,
        "role {object} acts for workload {workload}, and does not exist",
        ("{mend}",),
        run_as="pgfence_owner",
    ),
    Check(
        "PATTERN_AND_CREATEROLE",
        WARNING,
        "A workload has a pattern of login roles, and a role outside `pgfence_owner` may create roles: it "
        "could make one that acts for the workload.",
        """
        select r.rolname as object, quote_ident(r.rolname) as role, p.patterns
          from pg_roles as r
          cross join (select string_agg(w.role_name || '*', ', ' order by w.role_name) as patterns
                        from pgfence.workload_roles as w where w.is_prefix) as p
         where p.patterns is not null and r.rolcreaterole and not r.rolsuper
           and not pg_has_role(r.oid, 'pgfence_owner', 'MEMBER')
        """,
        "{object} may create roles, and those named {patterns} act for workloads",
        ("alter role {role} nocreaterole;",),
    ),
    Check(
        "REGISTRY_MAY_NOT_SIGNAL",
        WARNING,
        "A role that signs may not end overdue sessions (R20): a hanging owner holds up the next one "
        "until its session ends by itself.",
        """
        select r.rolname as object, quote_ident(r.rolname) as role
          from pg_roles as r
         where r.rolcanlogin and not r.rolsuper and pg_has_role(r.oid, 'pgfence_registry', 'USAGE')
           and not pg_has_role(r.oid, 'pg_signal_backend', 'USAGE')
           and not exists (select from pgfence.workload_logins as l where l.role = r.oid)
        """,
        "{object} signs grants, and may not end sessions that hold up a successor",
        ("grant pg_signal_backend to {role};",),
    ),
    # what pgfence installed
    Check(
        "OBJECT_OWNER",
        ERROR,
        "Something in the schemas of pgfence, or such a schema, does not belong to `pgfence_owner`.",
        f"""
        select n.nspname::text as object, pg_get_userbyid(n.nspowner) as owner,
               format('alter schema %I owner to pgfence_owner;', n.nspname) as mend
          from pg_namespace as n
         where n.oid in {_OURS} and n.nspowner <> 'pgfence_owner'::regrole
        union all
        select p.oid::regprocedure::text, pg_get_userbyid(p.proowner),
               format('alter routine %s owner to pgfence_owner;', p.oid::regprocedure)
          from {_FUNCTIONS} where p.proowner <> 'pgfence_owner'::regrole
        union all
        select c.oid::regclass::text, pg_get_userbyid(c.relowner),
               format('alter %s %s owner to pgfence_owner;',
                   case c.relkind when 'v' then 'view' when 'm' then 'materialized view' when 'c' then 'type'
                                  when 'S' then 'sequence' when 'f' then 'foreign table' else 'table' end, c.oid::regclass)
          from {_RELATIONS}
         where c.relowner <> 'pgfence_owner'::regrole and c.relkind in ('r', 'p', 'v', 'm', 'c', 'S', 'f')
           and not exists (
               select from pg_depend as d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i')
        """,
        "{object} belongs to {owner}, who may change or drop it",
        ("{mend}",),
    ),
    Check(
        "UNKNOWN_TRIGGER",
        ERROR,
        "A table of pgfence has a trigger, a rule or a child table that pgfence did not make: code of "
        "somebody's runs with pgfence's rights, or rows go elsewhere.",
        f"""
        select c.oid::regclass::text as object, 'trigger ' || quote_ident(t.tgname) as thing,
               format('drop trigger %I on %s;', t.tgname, c.oid::regclass) as mend
          from {_RELATIONS} join pg_trigger as t on t.tgrelid = c.oid and not t.tgisinternal
         where not exists (
             select from {_installed("triggers")} where to_regclass(e."table") = c.oid and e.name = t.tgname)
        union all
        select c.oid::regclass::text, 'rule ' || quote_ident(r.rulename),
               format('drop rule %I on %s;', r.rulename, c.oid::regclass)
          from {_RELATIONS} join pg_rewrite as r on r.ev_class = c.oid
         where c.relkind in ('r', 'p')
        union all
        select c.oid::regclass::text, 'child table ' || i.inhrelid::regclass,
               format('alter table %s no inherit %s;', i.inhrelid::regclass, c.oid::regclass)
          from {_RELATIONS} join pg_inherits as i on i.inhparent = c.oid
         where c.relkind = 'r'
        """,
        "{object} has the {thing}, which pgfence did not make",
        ("{mend}",),
    ),
    Check(
        "UNKNOWN_OBJECT",
        WARNING,
        "A function or table stands in a schema of pgfence that pgfence did not make.",
        f"""
        select p.oid::regprocedure::text as object, format('drop routine %s;', p.oid::regprocedure) as mend
          from {_FUNCTIONS}
         where not exists (select from {_installed("functions")} where e.name = n.nspname || '.' || p.proname)
           and not ({_IS_GUARD} and exists (
               select from pgfence.protected_tables as t where p.proname = '_guard_' || t.guard_id))
        union all
        select c.oid::regclass::text,
               format('drop %s %s;', case c.relkind when 'v' then 'view' when 'm' then 'materialized view' when 'S' then 'sequence'
                                                    when 'f' then 'foreign table' else 'table' end, c.oid::regclass)
          from {_RELATIONS}
         where c.relkind in ('r', 'p', 'v', 'm', 'S', 'f')
           and not exists (select from {_installed("relations")} where e.name = n.nspname || '.' || c.relname)
           and not exists (
               select from pg_depend as d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('a', 'i'))
        """,
        "{object} is not part of pgfence",
        ("{mend}",),
        step="Look at it before you drop it: who made it, and why?",
    ),
    Check(
        "FUNCTION_MISSING",
        ERROR,
        "A function of pgfence is missing.",
        f"""
        select e.name as object,
               array[e.source, format('revoke all on function %s from public;', e.name)]
               || array(select format('grant execute on function %s to %I;', e.name, r) from jsonb_array_elements_text(e.roles) as r)
                   as statements
          from {_installed("functions")}
         where not exists (select from {_FUNCTIONS} where e.name = n.nspname || '.' || p.proname)
        """,
        "the function {object} is missing",
        ("{statements}",),
        run_as="pgfence_owner",
    ),
    Check(
        "FUNCTION_CHANGED",
        ERROR,
        "A function of pgfence has another body, other rights or another volatility than this version "
        "of pgfence installs.",
        f"""
        select p.oid::regprocedure::text as object, e.source, concat_ws(', ',
                   case when p.prosrc <> e.body then 'its body' end,
                   case when p.prosecdef <> e.definer then 'with whose rights it runs' end,
                   case when p.provolatile <> left(e.volatility, 1)::"char" then 'its volatility' end,
                   case when l.lanname not in ('sql', 'plpgsql') then 'its language' end) as what
          from {_installed("functions")}
          join ({_FUNCTIONS} join pg_language as l on l.oid = p.prolang) on e.name = n.nspname || '.' || p.proname
         where e.name <> 'pgfence._guards_are_whole'
           and (p.prosrc <> e.body or p.prosecdef <> e.definer or p.provolatile <> left(e.volatility, 1)::"char"
            or l.lanname not in ('sql', 'plpgsql'))
        """,
        "{object} was changed: {what}",
        ("{source}",),
        run_as="pgfence_owner",
    ),
    Check(
        "ATTESTATION_CHANGED",
        ERROR,
        "`pgfence._guards_are_whole` was not written for the tables that are protected now: a guard "
        "that is lost may go unnoticed (R25).",
        f"""
        select p.oid::regprocedure::text as object
          from {_FUNCTIONS}
         where n.nspname = 'pgfence' and p.proname = '_guards_are_whole'
           and p.prosrc <> pgfence.attestation_source()
        """,
        "{object} was not written for the tables that are protected",
        ("select pgfence._write_attestation();",),
        run_as="pgfence_owner",
    ),
    Check(
        "FUNCTION_SEARCH_PATH",
        ERROR,
        "A function of pgfence does not pin `search_path = pg_catalog, pg_temp` (R27): a caller's "
        "own objects may be taken for PostgreSQL's.",
        f"""
        select p.oid::regprocedure::text as object
          from {_installed("functions")} join ({_FUNCTIONS}) on e.name = n.nspname || '.' || p.proname
         where array(select c.setting from unnest(p.proconfig) as c (setting)
                      where c.setting not in ('enable_seqscan=off', 'jit=off', 'quote_all_identifiers=off'))
               <> array['search_path=pg_catalog, pg_temp']
        """,
        "{object} does not pin its search_path",
        (
            "alter function {object} reset all;",
            "alter function {object} set search_path = pg_catalog, pg_temp;",
        ),
        run_as="pgfence_owner",
    ),
    Check(
        "FUNCTION_RIGHT",
        ERROR,
        "Somebody may execute a function of pgfence who must not, PUBLIC for one, or may grant that "
        "right to others (R27).",
        f"""
        select p.oid::regprocedure::text as object, {_GRANTEE} as grantee,
               case when coalesce(e.roles, '[]') ? pg_get_userbyid(a.grantee) then 'grant option for execute' else 'all' end as what
          from ({_FUNCTIONS} left join {_installed("functions")} on e.name = n.nspname || '.' || p.proname)
         cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
         where a.grantee <> p.proowner
           and case when {_IS_GUARD} then a.grantee = 0
                    else e.name is not null and (not e.roles ? pg_get_userbyid(a.grantee) or a.is_grantable) end
        """,
        "{grantee} has a right on {object} that pgfence did not give",
        ("revoke {what} on function {object} from {grantee} cascade;",),
        run_as="pgfence_owner",
    ),
    Check(
        "TABLE_RIGHT",
        ERROR,
        "Somebody holds a right on a table, column, view or sequence of pgfence who must not, or may "
        "grant it to others.",
        f"""
        select c.oid::regclass::text as object, {_GRANTEE} as grantee, a.privilege_type as privilege,
               format('revoke %s%s on %s%s from %s cascade;',
                   case when e.roles ? pg_get_userbyid(a.grantee) and a.privilege_type = 'SELECT' then 'grant option for ' end,
                   lower(a.privilege_type), case c.relkind when 'S' then 'sequence ' end, c.oid::regclass, {_GRANTEE}) as mend
          from ({_RELATIONS} left join {_installed("relations")} on e.name = n.nspname || '.' || c.relname)
         cross join aclexplode(c.relacl) as a
         where a.grantee <> c.relowner and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f')
           and (a.privilege_type <> 'SELECT' or a.is_grantable or (e.roles ? pg_get_userbyid(a.grantee)) is not true)
        union all
        select c.oid::regclass || '.' || quote_ident(t.attname), {_GRANTEE}, a.privilege_type,
               format('revoke %s (%I) on %s from %s cascade;', lower(a.privilege_type), t.attname, c.oid::regclass, {_GRANTEE})
          from {_RELATIONS} join pg_attribute as t on t.attrelid = c.oid cross join aclexplode(t.attacl) as a
         where a.grantee <> c.relowner
        """,
        "{grantee} has the right {privilege} on {object}, which pgfence did not give",
        ("{mend}",),
        run_as="pgfence_owner",
    ),
    Check(
        "SCHEMA_RIGHT",
        ERROR,
        "Somebody else than the three groups may use a schema of pgfence, or anybody may create "
        "objects in it.",
        f"""
        select n.nspname::text as object, {_GRANTEE} as grantee, a.privilege_type as privilege,
               case when a.privilege_type = 'USAGE' and pg_get_userbyid(a.grantee) in {_GROUPS} then 'grant option for ' else '' end
                   || lower(a.privilege_type) as what
          from pg_namespace as n cross join aclexplode(n.nspacl) as a
         where n.oid in {_OURS} and a.grantee <> n.nspowner
           and (a.privilege_type <> 'USAGE' or a.is_grantable or pg_get_userbyid(a.grantee) not in {_GROUPS})
        """,
        "{grantee} has the right {privilege} on schema {object}, which pgfence did not give",
        ("revoke {what} on schema {object} from {grantee} cascade;",),
        run_as="pgfence_owner",
    ),
    Check(
        "MISSING_RIGHT",
        WARNING,
        "A group lacks a right that it needs, as after a restore without privileges, or the new owner "
        "of a protected table the right to attach partitions. What is closed is safe, but does not work.",
        f"""
        select p.oid::regprocedure::text as object, r as grantee,
               format('grant execute on function %s to %I;', p.oid::regprocedure, r) as mend
          from {_installed("functions")} join ({_FUNCTIONS}) on e.name = n.nspname || '.' || p.proname
         cross join jsonb_array_elements_text(e.roles) as r
         where not exists (
             select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
              where pg_get_userbyid(a.grantee) = r)
        union all
        select c.oid::regclass::text, r, format('grant select on %s to %I;', c.oid::regclass, r)
          from {_installed("relations")} join ({_RELATIONS}) on e.name = n.nspname || '.' || c.relname
         cross join jsonb_array_elements_text(e.roles) as r
         where not exists (
             select from aclexplode(c.relacl) as a where a.privilege_type = 'SELECT' and pg_get_userbyid(a.grantee) = r)
        union all
        select n.nspname::text, r.rolname, format('grant usage on schema %I to %I;', n.nspname, r.rolname)
          from pg_namespace as n join pg_roles as r on r.rolname in {_GROUPS}
         where n.oid in {_OURS}
           and not exists (
             select from aclexplode(n.nspacl) as a where a.privilege_type = 'USAGE' and a.grantee = r.oid)
        union all
        select f.oid::regprocedure::text, o.rolname, format('grant execute on function %s to %I;', f.oid::regprocedure, o.rolname)
          from pgfence.protected_tables as p join pg_class as c on c.oid = p.protected_table
          join pg_roles as o on o.oid = c.relowner
          join pg_proc as f on f.pronamespace = 'pgfence'::regnamespace and f.proname = '_guard_' || p.guard_id
         where not has_function_privilege(o.oid, f.oid, 'EXECUTE')
        """,
        "{grantee} lacks its right on {object}",
        ("{mend}",),
        run_as="pgfence_owner",
    ),
    Check(
        "DEFAULT_PRIVILEGES",
        ERROR,
        "Default privileges of `pgfence_owner` open what the next `protect` or `migrate` makes.",
        f"""
        select 'pgfence_owner' as object, {_GRANTEE} as grantee, k.kind,
               coalesce(' in schema ' || quote_ident(n.nspname), '') as in_schema
          from pg_default_acl as d cross join aclexplode(d.defaclacl) as a
          join (values ('r', 'tables'), ('S', 'sequences'), ('f', 'routines'), ('T', 'types'), ('n', 'schemas'))
            as k (objtype, kind) on k.objtype::"char" = d.defaclobjtype
          left join pg_namespace as n on n.oid = d.defaclnamespace
         where d.defaclrole = 'pgfence_owner'::regrole and a.grantee <> d.defaclrole
           and not (a.grantee = 0 and d.defaclnamespace = 0 and d.defaclobjtype in ('f', 'T'))
         group by a.grantee, k.kind, n.nspname
        """,
        "{kind} that pgfence_owner makes{in_schema} are open to {grantee}",
        (
            "alter default privileges for role pgfence_owner{in_schema} revoke all on {kind} from "
            "{grantee};",
        ),
        run_as="pgfence_owner",
    ),
    Check(
        "TRIGGER_CHANGED",
        ERROR,
        "A trigger on a table of pgfence is missing, disabled, demoted from ENABLE ALWAYS (as "
        "`pg_restore --disable-triggers` leaves it) or changed: one that closes the table, keeps "
        "fences rising, or looks at COMMIT.",
        f"""
        select c.oid::regclass::text as object, e.name as trigger, e.source,
               case when t.oid is null then 'is missing'
                    when t.tgenabled <> 'A' then 'is not ENABLE ALWAYS' else 'was changed' end as state
          from {_installed("triggers")} join ({_RELATIONS}) on e."table" = n.nspname || '.' || c.relname
          left join pg_trigger as t on t.tgrelid = c.oid and t.tgname = e.name and not t.tgisinternal
          left join pg_proc as f on f.oid = t.tgfoid
         where t.oid is null or t.tgenabled <> 'A' or t.tgtype <> e.type or (t.tgqual is not null) <> e.has_condition
            or t.tginitdeferred <> e.is_deferred or f.oid <> to_regproc(e.function)
        """,
        "trigger {trigger} of {object} {state}",
        (
            "drop trigger if exists {trigger} on {object};",
            "{source}",
            "alter table {object} enable always trigger {trigger};",
        ),
        run_as="pgfence_owner",
    ),
    Check(
        "ROW_SECURITY",
        ERROR,
        "Row security of a table of pgfence is off, or has another policy than the one for reading: "
        "others may lock its rows, or write them.",
        f"""
        select c.oid::regclass::text as object,
               case when c.relrowsecurity then '{{}}' else array[format('alter table %s enable row level security;', c.oid::regclass)] end
               || case when c.relforcerowsecurity then array[format('alter table %s no force row level security;', c.oid::regclass)]
                       else '{{}}' end
               || array(select format('drop policy %I on %s;', p.polname, c.oid::regclass)
                          from pg_policy as p where p.polrelid = c.oid and not ({{readable}}) order by 1)
               || case when exists (select from pg_policy as p where p.polrelid = c.oid and {{readable}}) then '{{}}'
                       else array[format('create policy readable on %s for select using (true);', c.oid::regclass)] end as statements
          from {_installed("relations")} join ({_RELATIONS}) on e.name = n.nspname || '.' || c.relname and e.is_table
         where not c.relrowsecurity or c.relforcerowsecurity
            or (select count(*) filter (where {{readable}}) from pg_policy as p where p.polrelid = c.oid) <> 1
            or exists (select from pg_policy as p where p.polrelid = c.oid and not ({{readable}}))
        """.replace(
            "{readable}",
            "p.polname = 'readable' and p.polcmd = 'r' and p.polpermissive and p.polroles = '{0}'"
            " and pg_get_expr(p.polqual, p.polrelid) = 'true'",
        ),
        "row security of {object} is not as pgfence made it",
        ("{statements}",),
        run_as="pgfence_owner",
    ),
    Check(
        "UNLOGGED_TABLE",
        ERROR,
        "A table of pgfence is unlogged: a crash empties it, and a standby does not have it.",
        f"""
        select c.oid::regclass::text as object
          from {_RELATIONS} where c.relkind = 'r' and c.relpersistence = 'u'
        """,
        "{object} is unlogged",
        ("alter table {object} set logged;",),
        run_as="pgfence_owner",
    ),
    # protected tables
    Check(
        "TABLE_OWNER",
        ERROR,
        "An application role owns a protected table or a partition of it, or can act as its owner, "
        "by any path of memberships. An owner disables or drops the guard.",
        f"""
        with {_REACH}
        select r.rolname as object, r.does, r.through, quote_ident(o.rolname) as owner,
               min(c.oid::regclass::text) || case when count(*) > 1 then ' and others' else '' end as relations,
               case when r.revoke is null
                   then array_agg(format('alter table %s owner to current_user;', c.oid::regclass) order by c.oid)
                   else array[r.revoke] end as statements,
               case when r.revoke is null
                   then 'The superuser who runs it becomes the owner: give the table to a role that no application logs in as, '
                        'and that calls protect again.' else '' end as then
          from reach as r join ({_OF_GUARDS}) on c.relowner = r.target
         group by r.rolname, r.does, r.through, o.rolname, r.revoke
        """,
        "{object} ({does}) can act as {owner}{through}, which owns {relations}",
        ("{statements}",),
        step="{then}",
    ),
    Check(
        "SCHEMA_OWNER",
        ERROR,
        "An application role owns the schema of a protected table, or can act as its owner, who may "
        "drop the table and put another one in its place.",
        f"""
        with {_REACH}
        select distinct r.rolname as object, r.does, r.through, n.nspname as schema,
               coalesce(r.revoke, format('alter schema %I owner to current_user;', n.nspname)) as mend
          from reach as r join pg_namespace as n on n.nspowner = r.target
         where exists (select from pgfence.guards as g join pg_class as c on c.oid = g.relation
                        where c.relnamespace = n.oid)
        """,
        "{object} ({does}) can act as the owner of schema {schema}{through}, and drop protected "
        "tables in it",
        ("{mend}",),
    ),
    Check(
        "DATABASE_OWNER",
        ERROR,
        "An application role owns the database, or can act as its owner, who may drop it, set its "
        "parameters, and drop tables of schema public.",
        f"""
        with {_REACH}
        select r.rolname as object, r.does, r.through, d.datname as database,
               coalesce(r.revoke, format('alter database %I owner to current_user;', d.datname)) as mend
          from reach as r join pg_database as d on d.datdba = r.target and d.datname = current_database()
        """,
        "{object} ({does}) can act as the owner of database {database}{through}",
        ("{mend}",),
    ),
    Check(
        "GUARD_IMPOSSIBLE",
        ERROR,
        "A protected table, or a partition of it, has become something that no guard holds: unlogged, "
        "with rules, children or a parent, or without a column that names the resource. Admission is refused.",
        f"""
        select c.oid::regclass::text as object, g.unprotectable as problem, t.rolname as owner,
               case when c.relpersistence = 'u' then array[format('alter table %s set logged;', c.oid::regclass)]
                    else '{{}}' end
               || array(
                   select format('drop rule %I on %s;', r.rulename, c.oid::regclass)
                     from pg_rewrite as r where r.ev_class = c.oid and r.ev_type <> '1' order by 1)
               || array(
                   select case when p.relkind = 'p' then format('alter table %s detach partition %s;', p.oid::regclass, c.oid::regclass)
                               else format('alter table %s no inherit %s;', c.oid::regclass, p.oid::regclass) end
                     from pg_inherits as i join pg_class as p on p.oid = i.inhparent
                    where i.inhrelid = c.oid and (c.oid = g.protected_table or c.relkind not in ('r', 'p'))
                    order by 1)
               || array(
                   select format('alter table %s no inherit %s;', i.inhrelid::regclass, c.oid::regclass)
                     from pg_inherits as i where i.inhparent = c.oid and c.relkind = 'r' order by 1)
               || format('select pgfence.protect(%L, %L);', g.protected_table, g.template) as statements,
               case when g.unprotectable like 'has no stored column%'
                   then 'First give it that column again, of a type that can name a resource and not virtual.' else '' end as first
          from {_OF_GUARDS}
          join pg_class as p on p.oid = g.protected_table
          join pg_roles as t on t.oid = p.relowner
         where g.unprotectable is not null
        """,
        "{object} {problem}",
        ("{statements}",),
        run_as="{owner}",
        step="{first}",
    ),
    Check(
        "GUARD_NOT_WHOLE",
        ERROR,
        "The guard of a protected table, or of a partition, is missing, disabled, demoted from ENABLE "
        "ALWAYS (as `pg_restore --disable-triggers` leaves it) or changed, or somebody may replace "
        "it. Admission is refused (R25), but rows are written unguarded.",
        f"""
        select c.oid::regclass::text as object, g.missing, t.rolname as owner,
               format('select pgfence.protect(%L, %L);', g.protected_table, g.template) as protect
          from {_OF_GUARDS}
          join pg_class as p on p.oid = g.protected_table
          join pg_roles as t on t.oid = p.relowner
         where g.missing is not null and g.unprotectable is null
        """,
        "{object}: {missing}",
        ("{protect}",),
        run_as="{owner}",
    ),
    Check(
        "REFERENCES_RIGHT",
        ERROR,
        "An application role, or everybody, may make foreign keys that refer to a protected table, or to one of which a "
        "foreign key deletes or changes rows along with it: who deletes a row of the protected table, or changes its "
        "key, then runs code of theirs, in its own admitted transaction. GRANT ALL includes that right.",
        f"""
        with recursive {_APPLICATION}, {_CHANGED}
        select distinct c.oid::regclass::text || coalesce('.' || quote_ident(a.attname), '') as object, {_GRANTEE} as grantee,
               o.rolname as owner,
               format('revoke references%s on %s from %s cascade;', ' (' || quote_ident(a.attname) || ')', c.oid::regclass,
                      {_GRANTEE}) as mend
          from changed as h
          join pg_class as c on c.oid = h.relation
          join pg_roles as o on o.oid = c.relowner
         cross join lateral (
             select null::name as attname, t.grantee, t.privilege_type from aclexplode(c.relacl) as t
              union all
             select l.attname, t.grantee, t.privilege_type
               from pg_attribute as l cross join aclexplode(l.attacl) as t
              where l.attrelid = c.oid and not l.attisdropped
         ) as a
         where a.privilege_type = 'REFERENCES' and a.grantee <> c.relowner and {_FOR_APPLICATIONS}
           and (h.columns is null or exists (
                select from pg_index as i
                 where i.indrelid = c.oid and i.indisunique and i.indkey::smallint[] && h.columns))
        """,
        "{grantee} has the right REFERENCES on {object}",
        ("{mend}",),
        run_as="{owner}",
    ),
    Check(
        "REFERRING_TABLE",
        ERROR,
        "An application role owns a table with a foreign key that refers to a protected table, or to one of which a "
        "foreign key deletes or changes rows along with it, or can act as its owner: who deletes a row of the protected "
        "table, or changes its key, may run that table's triggers, in its own admitted transaction.",
        f"""
        with recursive {_REACH}, {_CHANGED}
        select distinct k.conrelid::regclass::text as object, quote_ident(r.rolname) as role, r.does, r.through,
               h.relation::regclass::text as referred,
               coalesce(r.revoke, format('alter table %s drop constraint %I;', k.conrelid::regclass, k.conname)) as mend
          from changed as h
          join pg_class as c on c.oid = h.protected
          join pg_constraint as k on k.confrelid = h.relation and k.contype = 'f' and k.conparentid = 0
           and (h.columns is null or k.confkey && h.columns)
          join pg_class as f on f.oid = k.conrelid and f.relowner <> c.relowner
          join reach as r on r.target = f.relowner
        """,
        "{object} refers to {referred}, and {role} ({does}) can act as its owner{through}",
        ("{mend}",),
        step="Or give the table, and the functions of its triggers, to a role that no application logs in as.",
    ),
    Check(
        "REPLACEABLE_CODE",
        ERROR,
        "An application role owns a function or type that writing a protected table uses, in a trigger, "
        "default, constraint, index or policy, or can act as its owner: what it puts there runs in the "
        "admitted transactions of others.",
        f"""
        with recursive {_REACH}, uses as (
            select c.oid as relation, o.rolname as owner, x.classid, x.objid
              from {_OF_GUARDS}
              join pg_depend as x on x.refclassid = 'pg_class'::regclass and x.refobjid = c.oid
               and (x.classid in ('pg_trigger'::regclass, 'pg_attrdef'::regclass, 'pg_constraint'::regclass, 'pg_policy'::regclass)
                    or x.classid = 'pg_class'::regclass and exists (
                        select from pg_class as i where i.oid = x.objid and i.relkind in ('i', 'I')))
             union all
            select c.oid, o.rolname, 'pg_class'::regclass, c.oid from {_OF_GUARDS}
        ), code as (
            select u.relation, u.owner, d.refclassid as classid, d.refobjid as objid
              from uses as u join pg_depend as d on d.classid = u.classid and d.objid = u.objid
             where d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
             union
            select k.relation, k.owner, d.refclassid, d.refobjid
              from code as k
             cross join lateral (
                   select k.classid, k.objid
                    union all
                   -- the checks of a domain, and the columns of a composite type, hang on it
                   select 'pg_constraint'::regclass, n.oid
                     from pg_constraint as n where k.classid = 'pg_type'::regclass and n.contypid = k.objid
                    union all
                   select 'pg_class'::regclass, t.typrelid
                     from pg_type as t where k.classid = 'pg_type'::regclass and t.oid = k.objid and t.typrelid <> 0
             ) as u
              join pg_depend as d on d.classid = u.classid and d.objid = u.objid
             where d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
        ), owned as (
            select k.relation, k.owner, k.classid, k.objid, coalesce(p.proowner, t.typowner) as owned_by,
                   case when p.oid is not null then 'routine ' || p.oid::regprocedure
                        else case t.typtype when 'd' then 'domain ' else 'type ' end || t.oid::regtype end as name
              from code as k
              left join pg_proc as p on k.classid = 'pg_proc'::regclass and p.oid = k.objid
              left join pg_type as t on k.classid = 'pg_type'::regclass and t.oid = k.objid and t.typrelid = 0 and t.typelem = 0
        )
        select w.name as object, quote_ident(r.rolname) as role, r.does, r.through, min(w.relation::regclass::text) as relation,
               coalesce(r.revoke, format('alter %s owner to %I;', w.name, min(w.owner))) as mend
          from owned as w join reach as r on r.target = w.owned_by
         group by w.name, r.rolname, r.does, r.through, r.revoke
        """,
        "{role} ({does}) can act as the owner of {object}{through}, which writing {relation} runs",
        ("{mend}",),
        step="Read first what it does.",
    ),
    Check(
        "TRUNCATE_RIGHT",
        WARNING,
        "Somebody else than its owner may TRUNCATE a protected table or a partition: only a trigger "
        "refuses it. GRANT ALL includes that right.",
        f"""
        select c.oid::regclass::text as object, {_GRANTEE} as grantee, o.rolname as owner
          from {_OF_GUARDS} cross join aclexplode(c.relacl) as a
         where a.privilege_type = 'TRUNCATE' and a.grantee <> c.relowner
        """,
        "{grantee} has the right TRUNCATE on {object}",
        ("revoke truncate on {object} from {grantee} cascade;",),
        run_as="{owner}",
    ),
    Check(
        "SCHEMA_CREATE",
        WARNING,
        "An application role, or everybody, may create objects in schema public, in that of a protected table, or "
        "in one that a role's or the database's `search_path` names. A function or operator put there may be taken for "
        "the one that a statement of an owner's means, and runs in its admitted transaction. In schema public everybody "
        "may before PostgreSQL 15, unless it is revoked.",
        f"""
        with {_APPLICATION}
        select n.nspname::text as object, {_GRANTEE} as grantee,
               format('revoke create on schema %I from %s cascade;', n.nspname, {_GRANTEE}) as mend
          from pg_namespace as n cross join aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) as a
         where a.privilege_type = 'CREATE' and a.grantee <> n.nspowner and {_FOR_APPLICATIONS}
           and (n.nspname = 'public'
                or exists (select from application as x where x.rolname = n.nspname and x.oid <> a.grantee)
                or exists (select from pgfence.guards as g join pg_class as c on c.oid = g.relation
                            where c.relnamespace = n.oid)
                or exists (
                    select from pg_db_role_setting as s cross join unnest(s.setconfig) as p
                     cross join regexp_split_to_table(split_part(p, '=', 2), ',') as name
                     where p like 'search_path=%' and btrim(name, ' "') = n.nspname
                       and (s.setdatabase = 0 or s.setdatabase in (
                            select d.oid from pg_database as d where d.datname = current_database()))))
        """,
        "{grantee} may create objects in schema {object}",
        ("{mend}",),
    ),
    Check(
        "PARTITION_PRIVILEGES",
        WARNING,
        "Default privileges of the owner of a protected partitioned table hand out TRIGGER or "
        "TRUNCATE: a partition that is made later stops admission until `protect` is called.",
        f"""
        select d.defaclrole::regrole::text as object, {_GRANTEE} as grantee,
               string_agg(lower(a.privilege_type), ', ' order by a.privilege_type) as privileges,
               coalesce(' in schema ' || quote_ident(n.nspname), '') as in_schema
          from pg_default_acl as d cross join aclexplode(d.defaclacl) as a
          left join pg_namespace as n on n.oid = d.defaclnamespace
         where d.defaclobjtype = 'r' and a.privilege_type in ('TRIGGER', 'TRUNCATE') and a.grantee <> d.defaclrole
           and exists (select from {_OF_GUARDS} where g.is_partitioned and c.relowner = d.defaclrole)
         group by d.defaclrole, a.grantee, n.nspname
        """,
        "tables that {object} makes{in_schema} give {grantee} the rights {privileges}",
        (
            "alter default privileges for role {object}{in_schema} revoke {privileges} on tables "
            "from {grantee};",
        ),
    ),
    Check(
        "LATE_PARTITION",
        NOTE,
        "A partition that was attached after `protect` has the row trigger alone: as safe, but nobody "
        "else than its owner may TRUNCATE it, and it is open while it is detached.",
        f"""
        select c.oid::regclass::text as object, t.rolname as owner,
               format('select pgfence.protect(%L, %L);', g.protected_table, g.template) as protect
          from {_OF_GUARDS}
          join pg_class as p on p.oid = g.protected_table
          join pg_roles as t on t.oid = p.relowner
         where g.missing is null and g.unprotectable is null
           and not (g.statement_guards and g.truncate_guard)
        """,
        "{object} was attached after protect, and has the row trigger of the guard alone",
        ("{protect}",),
        run_as="{owner}",
    ),
    Check(
        "DROPPED_TABLE",
        NOTE,
        "A protected table was dropped, and its record is left.",
        """
        select p.protected_table::oid::text as object, p.template
          from pgfence.protected_tables as p
         where not exists (select from pg_class as c where c.oid = p.protected_table)
        """,
        "the table with OID {object}, protected as {template}, is gone",
        ("select pgfence.unprotect('{object}');",),
        run_as="pgfence_owner",
    ),
    # what is going on now
    Check(
        "PREPARED_TRANSACTION",
        WARNING,
        "A prepared transaction holds a fence or rows of a protected table: successors wait for it "
        "until somebody ends it.",
        """
        select x.gid as object, x.prepared::text, quote_ident(x.owner) as owner,
               format('rollback prepared %L;', x.gid) as mend, format('commit prepared %L;', x.gid) as otherwise
          from pg_prepared_xacts as x
         where x.database = current_database()
           and exists (
               select from pg_locks as t join pg_locks as l on l.virtualtransaction = t.virtualtransaction
                 join pg_database as d on d.oid = l.database and d.datname = x.database
                where t.locktype = 'transactionid' and t.transactionid = x.transaction and t.pid is null
                  and l.locktype = 'relation' and l.pid is null
                  and (l.relation in (select c.oid from pg_class as c where c.relkind = 'r' and c.relnamespace in
                          ('pgfence'::regnamespace, 'pgfence_registry'::regnamespace))
                       or l.relation in (select g.relation from pgfence.guards as g)))
        """,
        "the transaction {object} was prepared by {owner} at {prepared} and is still open",
        ("{mend}",),
        step="Or, if its coordinator has decided so: {otherwise}",
    ),
    Check(
        "HELD_UP",
        WARNING,
        "The registry is elsewhere, so no process ends a session that keeps others from a resource (R20), and "
        "one has done so for longer than any status proof counts: its client has unset its time-outs.",
        """
        select f.resource as object, h.holder::text as pid,
               floor(extract(epoch from clock_timestamp() - h.since))::text as waited
          from pgfence._held_rows as h
          join pgfence.fences as f on f.ctid = h.at
         where h.relation = 'pgfence.fences'::regclass
           and h.holder is not null and h.since <= clock_timestamp() - interval '30 seconds'
           and not (select c.registry_is_local from pgfence.configuration as c)
        """,
        "session {pid} has kept others from {object} for {waited} s",
        (),
        step="It cannot commit any more, unless it shows its grant alone and the first half of that lease "
        "runs. As a role in pg_signal_backend: select pg_terminate_backend({pid});",
    ),
    Check(
        "CHANGE_HELD_UP",
        WARNING,
        "A change of a policy, a workload or the trust bundle has waited for 10 seconds for a transaction outside "
        "READ COMMITTED that was admitted before it. A client that has unset its time-outs can keep it open, after its "
        "lease too, and so its own removal from being seen.",
        """
        select 'session ' || h.holder as object, h.holder::text as pid,
               floor(extract(epoch from clock_timestamp() - max(h.since)))::text as waited
          from pgfence._held_rows as h
         where h.relation = 'pgfence.configuration'::regclass
           and h.holder is not null and h.since <= clock_timestamp() - interval '10 seconds'
         group by h.holder
        """,
        "{object} has kept a change of the configuration waiting for {waited} s",
        (),
        step="What it writes after its lease is refused at COMMIT. As a role in pg_signal_backend: "
        "select pg_terminate_backend({pid});",
    ),
    Check(
        "NO_TRUST",
        WARNING,
        "No trust bundle is installed: every grant is refused.",
        """
        select current_database()::text as object where not exists (select from pgfence.trust_bundles)
        """,
        "{object} has no trust bundle: every grant is refused",
        (),
        step="Make the first one and install it, docs/trust.md says how: pgfence trust init --audience NAME",
    ),
    Check(
        "TRUST_ENDED",
        WARNING,
        "The trust bundle in force has ended, or the last of its keys for a purpose.",
        _trust_ends("'-infinity'", "now()"),
        "the {object} ended at {ends}: {so}",
        (),
        step="Have another one signed and installed, docs/trust.md says how: {command}",
    ),
    Check(
        "TRUST_ENDS_SOON",
        NOTE,
        f"The trust bundle in force, or the last of its keys for a purpose, ends within {_RENEWAL_DAYS} days.",
        _trust_ends("now()", f"now() + interval '{_RENEWAL_DAYS} days'"),
        "the {object} ends at {ends}; from then on {so}",
        (),
        step="Have another one signed and installed in time, docs/trust.md says how: {command}",
    ),
    Check(
        "SHADOW",
        NOTE,
        "A prefix of resources is in shadow: what would be refused is noted and let through (R28).",
        """
        select case when r.prefix = '' then 'everything' else r.prefix end as object,
               date_trunc('second', r.shadow_since)::text as since, r.shadow_by,
               format('select pgfence.enforce(%L);', r.prefix) as mend,
               case when r.prefix = '' then '""' else r.prefix end as argument
          from pgfence.rollout as r where r.enforced_since is null
        """,
        "{object} is in shadow since {since}, by {shadow_by}: nothing is refused there",
        ("{mend}",),
        run_as="pgfence_owner",
        step="Look first what that would refuse: pgfence rollout enforce {argument} shows it, and asks.",
    ),
    Check(
        "NO_REGISTRY",
        NOTE,
        "No session of a role in `pgfence_registry` is connected: new grants are not signed.",
        """
        select current_database()::text as object
         where (select c.registry_is_local from pgfence.configuration as c) and not exists (
             select from pg_stat_activity as s join pg_roles as r on r.oid = s.usesysid
              where s.datname = current_database() and not r.rolsuper and s.pid <> pg_backend_pid()
                and pg_has_role(r.oid, 'pgfence_registry', 'USAGE'))
        """,
        "no registry is connected to {object}",
        (),
        step="Start it: pgfence registry serve --key grant.key",
    ),
    Check(
        "UNTRUSTED_LANGUAGE",
        NOTE,
        "An untrusted language is installed. A function in it does whatever the server's system user "
        "may do; a superuser makes such functions, and others may call them.",
        """
        select l.lanname::text as object from pg_language as l
         where not l.lanpltrusted and l.lanname not in ('internal', 'c')
        """,
        "the untrusted language {object} is installed",
        (),
        step="Look who may call functions in it. Where nothing needs it: drop extension {object};",
    ),
    Check(
        "EXTENSION",
        NOTE,
        "An extension is installed that opens connections or files, or runs jobs, as somebody else: "
        "adminpack, dblink, file_fdw, pg_background, pg_cron, postgres_fdw.",
        """
        select e.extname::text as object from pg_extension as e
         where e.extname in ('adminpack', 'dblink', 'file_fdw', 'pg_background', 'pg_cron', 'postgres_fdw')
        """,
        "the extension {object} is installed",
        (),
        step="Look who may use its functions, servers and user mappings.",
    ),
)
