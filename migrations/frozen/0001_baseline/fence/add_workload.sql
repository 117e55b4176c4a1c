-- Says that a login role acts for a workload. Saying the same again changes nothing.
create function pgfence.add_workload(p_workload text, p_role text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_workload text;
begin
    perform pgfence._owner_only();
    if p_workload is null or not pgfence._is_identifier(p_workload) then
        perform pgfence._raise('INVALID_ARGUMENT', pg_catalog.format('workload %L is not an ID', p_workload),
            'Use 1 to 255 printable ASCII characters without space, double quote or backslash.', 'R6');
    end if;
    if not exists (select from pg_catalog.pg_roles as r where r.rolname = p_role) then
        perform pgfence._raise('INVALID_ARGUMENT', pg_catalog.format('there is no role %L', p_role),
            'Create the login role first.', 'R6');
    end if;
    select w.workload into v_workload from pgfence.workload_roles as w where w.role_name = p_role;
    if v_workload = p_workload then
        return;
    elsif found then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('role %I already belongs to workload %s', p_role, v_workload),
            'A login role belongs to exactly one workload. Remove it there first.', 'R6');
    end if;
    insert into pgfence.workload_roles (role_name, workload) values (p_role, p_workload);
    update pgfence.configuration set version = version + 1;
end
$$;
-- next statement
revoke all on function pgfence.add_workload(text, text) from public;
-- next statement
comment on function pgfence.add_workload(text, text) is
    'Lets a login role act for a workload (R6). Owner only. Raises PF301.';
