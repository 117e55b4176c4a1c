-- Takes a login role, or its sessions with one SYSTEM_USER, out of the workload: its grants are refused
-- from then on (NOT_OWNER).
create function pgfence.remove_workload(p_role text, p_system_user text default null)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._owner_only();
    return pgfence._remove_workload(p_role, false, coalesce(p_system_user, ''));
end
$$;
revoke all on function pgfence.remove_workload(text, text) from public;
comment on function pgfence.remove_workload(text, text) is
    'Takes a login role out of its workload; false if it was in none (R6). Owner only.';
