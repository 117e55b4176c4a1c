-- The one rule of who acts for which workload (R6): a role whose name is the entry's, byte by byte, or
-- begins with it and goes on. No character is a wildcard, and case counts.
create view pgfence.workload_logins as
select r.oid as role, r.rolname as role_name, w.workload, w.authenticated_as,
       w.role_name as entry, w.is_prefix
  from pgfence.workload_roles as w
  join pg_catalog.pg_roles as r
    on case when w.is_prefix
            then pg_catalog.starts_with(r.rolname::text, w.role_name) and r.rolname::text <> w.role_name
            else r.rolname::text = w.role_name end;
-- next statement
comment on view pgfence.workload_logins is
    'Each role that there is and acts for a workload; where authenticated_as is not empty, only sessions with that SYSTEM_USER (R6).';
-- next statement
grant select on pgfence.workload_logins to pgfence_auditor;
