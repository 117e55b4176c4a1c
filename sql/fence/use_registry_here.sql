-- From here on the registry of this database is its own again: it knows no grant of the other one, and
-- mints above everything that was accepted here and above p_above, the highest that the other one issued.
create function pgfence.use_registry_here(p_above bigint, p_reason text default '')
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._owner_only();
    if p_reason is null or (p_above between 0 and 4503599627370496) is not true then
        perform pgfence._raise('INVALID_ARGUMENT', 'use_registry_here: the fence is out of range, or the reason is NULL',
            'Pass the highest fence token that the other registry issued, 0 to 2^52. The reason may be empty.', 'R37');
    end if;
    perform from pgfence.fences as f order by f.resource for no key update;
    update pgfence.configuration as c
       set registry_is_local = true, fence_base = greatest(c.fence_base, p_above);
    insert into pgfence.journal (action, reason, detail)
    values ('REGISTRY_HERE', p_reason, pg_catalog.jsonb_build_object('above', p_above));
end
$$;
revoke all on function pgfence.use_registry_here(bigint, text) from public;
comment on function pgfence.use_registry_here(bigint, text) is
    'Makes the registry in this database that of its resources again, minting above a fence token (R37). Owner only. Raises PF301.';
