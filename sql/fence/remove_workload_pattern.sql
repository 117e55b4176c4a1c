-- Takes all login roles whose names begin so out of the workload: their grants are refused from then on.
create function pgfence.remove_workload_pattern(p_pattern text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._owner_only();
    return p_pattern like '%*' and pgfence._remove_workload(pg_catalog.left(p_pattern, -1), true, '');
end
$$;
revoke all on function pgfence.remove_workload_pattern(text) from public;
comment on function pgfence.remove_workload_pattern(text) is
    'Takes a pattern of login roles out of its workload; false if there is no such pattern (R6). Owner only.';
