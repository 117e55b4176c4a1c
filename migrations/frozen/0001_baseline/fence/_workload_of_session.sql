-- The workload of whoever logged in; null if there is none. session_user cannot be chosen by a
-- client: SET ROLE, settings and application_name do not change it (R6).
create function pgfence._workload_of_session()
returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select w.workload from pgfence.workload_roles as w where w.role_name = session_user
$$;
-- next statement
revoke all on function pgfence._workload_of_session() from public;
-- next statement
comment on function pgfence._workload_of_session() is 'Workload of session_user, or null (R6).';
