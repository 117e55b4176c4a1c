-- Which workload a login acts for. Names of roles, not OIDs, so that a dump can be restored. No two rows
-- name the same login: pgfence._add_workload() sees to it.
create table pgfence.workload_roles (
    role_name        text collate "C" not null,
    workload         text collate "C" not null,
    added_at         timestamptz not null default pg_catalog.clock_timestamp(),
    added_by         text not null default session_user,
    is_prefix        boolean not null default false,
    authenticated_as text collate "C" not null default '',
    constraint workload_roles_pkey primary key (role_name, is_prefix, authenticated_as)
);

comment on table pgfence.workload_roles is
    'Login to workload: a login belongs to exactly one, instances of a service may share it (R6).';
comment on column pgfence.workload_roles.role_name is
    'Name of a role; where is_prefix, what the names of all roles of the workload begin with, and they go on after it.';
comment on column pgfence.workload_roles.authenticated_as is
    'SYSTEM_USER (PostgreSQL 16 and later) that the session must have besides the role; empty when the role says it all.';

grant select on pgfence.workload_roles to pgfence_auditor;
