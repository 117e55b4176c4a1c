-- Takes a login role out of its workload: its grants are refused from then on (NOT_OWNER).
create function pgfence.remove_workload(p_role text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._owner_only();
    delete from pgfence.workload_roles as w where w.role_name = p_role;
    if not found then
        return false;
    end if;
    update pgfence.configuration set version = version + 1;
    return true;
end
$$;
revoke all on function pgfence.remove_workload(text) from public;
comment on function pgfence.remove_workload(text) is
    'Takes a login role out of its workload; false if it was in none (R6). Owner only.';
