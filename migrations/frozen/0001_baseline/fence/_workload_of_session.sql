-- The workload of whoever logged in; null if there is none, or if several rows should name it. Neither
-- session_user nor SYSTEM_USER can be chosen by a client: SET ROLE, settings and application_name do not
-- change them (R6).
create function pgfence._workload_of_session()
returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case when count(*) = 1 then min(l.workload) end
      from pgfence.workload_logins as l
     where l.role_name = session_user and (l.authenticated_as = '' or l.authenticated_as = pgfence._system_user())
$$;
-- next statement
revoke all on function pgfence._workload_of_session() from public;
-- next statement
comment on function pgfence._workload_of_session() is 'Workload of session_user, or null (R6).';
