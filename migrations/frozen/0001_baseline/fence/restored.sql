-- For what no identity shows: files that were copied back, a disk or machine that was reset. Whoever
-- restored it says so, before anybody logs in; all grants of before are refused from then on, and new
-- fences lie above every one that this database knows, and above p_above. When it returns, no
-- transaction that was admitted before is open.
create function pgfence.restored(p_reason text default '', p_above bigint default 0)
returns table (issuer_epoch bigint, fence_base bigint, system_identifier bigint, timeline text, database_oid oid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._owner_only();
    if p_reason is null or p_above is null or p_above not between 0 and 4503599627370496 then
        perform pgfence._raise('INVALID_ARGUMENT',
            case when p_reason is null or p_above is null then 'restored: an argument is NULL'
                 else pg_catalog.format('restored: a fence of %s leaves no room for later ones', p_above) end,
            'The reason may be empty; the fence is the highest one known from elsewhere, 0 to 2^52.', 'R39');
    end if;
    if p_above > 0 and not (select c.registry_is_local from pgfence.configuration as c) then
        perform pgfence._raise('REGISTRY_ELSEWHERE', 'restored: fence tokens are minted by a registry in another database',
            'Leave out the fence here. Where the registry was restored as well, say so there.', 'R39');
    end if;
    perform from pgfence.fences as f order by f.resource for no key update;
    perform pgfence_registry._rebind_database(p_reason, p_above);
    return query
    select c.issuer_epoch, c.fence_base, c.system_identifier, c.timeline, c.database_oid from pgfence.configuration as c;
end
$$;
-- next statement
revoke all on function pgfence.restored(text, bigint) from public;
-- next statement
comment on function pgfence.restored(text, bigint) is
    'Says that this database was restored: ends all grants of before and raises the fence base (R39). Owner only. Raises PF301, PF308.';
