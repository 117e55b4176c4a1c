-- The workload that calls. Who belongs to none cannot ask for anything (R6).
create function pgfence_registry._caller()
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_workload constant text := pgfence._workload_of_session();
begin
    if v_workload is null then
        perform pgfence._raise('NO_WORKLOAD', pg_catalog.format('role %I belongs to no workload', session_user),
            pg_catalog.format('Run: select pgfence.add_workload(''NAME'', %L);', session_user), 'R6');
    end if;
    return v_workload;
end
$$;
-- next statement
revoke all on function pgfence_registry._caller() from public;
-- next statement
comment on function pgfence_registry._caller() is 'Workload of session_user (R6). Raises PF302.';
