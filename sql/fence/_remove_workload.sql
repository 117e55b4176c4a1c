-- Takes an entry out: what it named is refused from then on.
create function pgfence._remove_workload(p_role_name text, p_is_prefix boolean, p_authenticated_as text)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgfence.workload_roles as w
     where w.role_name = p_role_name and w.is_prefix = p_is_prefix and w.authenticated_as = p_authenticated_as;
    if not found then
        return false;
    end if;
    update pgfence.configuration set version = version + 1;
    return true;
end
$$;
revoke all on function pgfence._remove_workload(text, boolean, text) from public;
comment on function pgfence._remove_workload(text, boolean, text) is
    'Takes an entry out of pgfence.workload_roles; false if there is none (R6).';
