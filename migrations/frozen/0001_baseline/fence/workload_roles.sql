-- Which workload a login role acts for. The role's name, not its OID, so that a dump can be restored.
create table pgfence.workload_roles (
    role_name text not null constraint workload_roles_pkey primary key,
    workload  text collate "C" not null,
    added_at  timestamptz not null default pg_catalog.clock_timestamp(),
    added_by  text not null default session_user
);
-- next statement
comment on table pgfence.workload_roles is
    'Login role to workload: a role belongs to exactly one, instances of a service may share it (R6).';
-- next statement
grant select on pgfence.workload_roles to pgfence_auditor;
