-- Says that a login role acts for a workload; with p_system_user (PostgreSQL 16 and later) only its sessions
-- that were authenticated as that. Saying the same again changes nothing.
create function pgfence.add_workload(p_workload text, p_role text, p_system_user text default null)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._owner_only();
    if not exists (select from pg_catalog.pg_roles as r where r.rolname = p_role) then
        perform pgfence._raise('INVALID_ARGUMENT', pg_catalog.format('there is no role %L', p_role),
            'Create the login role first.', 'R6');
    end if;
    if p_system_user is not null and (p_system_user !~ '^[a-z0-9-]+:.' or pg_catalog.octet_length(p_system_user) > 1024) then
        perform pgfence._raise('INVALID_ARGUMENT', pg_catalog.format('%L is no SYSTEM_USER', p_system_user),
            'The session itself shows it: select system_user. It is like cert:CN=worker-7.', 'R6');
    end if;
    if p_system_user is not null and current_setting('server_version_num')::integer < 160000 then
        perform pgfence._raise('INVALID_ARGUMENT', 'this PostgreSQL has no SYSTEM_USER',
            'It came with PostgreSQL 16. Give each workload a login role of its own.', 'R6');
    end if;
    perform pgfence._add_workload(p_workload, p_role, false, coalesce(p_system_user, ''));
end
$$;
-- next statement
revoke all on function pgfence.add_workload(text, text, text) from public;
-- next statement
comment on function pgfence.add_workload(text, text, text) is
    'Lets a login role act for a workload (R6). Owner only. Raises PF301.';
