-- Adds an entry, unless it could name a login that another entry names: a login belongs to exactly one
-- workload, whichever roles are created later (R6). Saying the same again changes nothing.
create function pgfence._add_workload(p_workload text, p_role_name text, p_is_prefix boolean, p_authenticated_as text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_entry pgfence.workload_roles;
begin
    if p_workload is null or not pgfence._is_identifier(p_workload) then
        perform pgfence._raise('INVALID_ARGUMENT', pg_catalog.format('workload %L is not an ID', p_workload),
            'Use 1 to 255 printable ASCII characters without space, double quote or backslash.', 'R6');
    end if;
    lock table pgfence.workload_roles in share row exclusive mode;
    select w.* into v_entry
      from pgfence.workload_roles as w
     where (p_is_prefix and starts_with(w.role_name, p_role_name))
        or (w.is_prefix and starts_with(p_role_name, w.role_name))
        or (w.role_name = p_role_name
            and (w.authenticated_as = p_authenticated_as or '' in (w.authenticated_as, p_authenticated_as)))
     limit 1;
    if found and (v_entry.role_name, v_entry.workload, v_entry.is_prefix, v_entry.authenticated_as)
               = (p_role_name, p_workload, p_is_prefix, p_authenticated_as) then
        return;
    elsif found then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('%s %I%s%s already belongs to workload %s',
                case when v_entry.is_prefix then 'pattern' else 'role' end, v_entry.role_name,
                case when v_entry.is_prefix then '*' end, ' authenticated as ' || nullif(v_entry.authenticated_as, ''),
                v_entry.workload),
            'A login role belongs to exactly one workload. Remove it there first.', 'R6');
    end if;
    insert into pgfence.workload_roles (role_name, workload, is_prefix, authenticated_as)
    values (p_role_name, p_workload, p_is_prefix, p_authenticated_as);
    update pgfence.configuration set version = version + 1;
end
$$;
revoke all on function pgfence._add_workload(text, text, boolean, text) from public;
comment on function pgfence._add_workload(text, text, boolean, text) is
    'Adds an entry to pgfence.workload_roles that names no login of another one (R6). Raises PF301.';
