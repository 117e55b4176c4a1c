-- Says which database guards the resources of a prefix. Grants from now on carry its name; those that
-- are held stay what they are. Fence tokens lie above p_above from now on, the highest one that the
-- database knows (pgfence.use_registry_elsewhere returned it).
create function pgfence.place(p_prefix text, p_audience text, p_above bigint default 0, p_reason text default '')
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._owner_only();
    if p_prefix is null or (p_prefix <> '' and not pgfence._is_identifier(p_prefix))
       or p_audience is null or not pgfence._is_identifier(p_audience)
       or p_reason is null or (p_above between 0 and 4503599627370496) is not true then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('place: prefix %L, audience %L or fence %s is not valid, or the reason is NULL', p_prefix, p_audience, p_above),
            'A prefix is the beginning of a resource ID, an audience is an ID, a fence is 0 to 2^52. The reason may be empty.', 'R1');
    end if;
    update pgfence.configuration as c set fence_base = p_above where c.fence_base < p_above;
    insert into pgfence_registry.placements as p (prefix, audience)
    values (p_prefix, p_audience)
    on conflict (prefix) do update
       set audience = excluded.audience, placed_at = pg_catalog.clock_timestamp(), placed_by = session_user;
    insert into pgfence.journal (action, resource, reason, detail)
    values ('PLACED', p_prefix, p_reason, pg_catalog.jsonb_build_object('prefix', p_prefix, 'audience', p_audience, 'above', p_above));
end
$$;
revoke all on function pgfence.place(text, text, bigint, text) from public;
comment on function pgfence.place(text, text, bigint, text) is
    'Places the resources of a prefix in the database of an audience, with fence tokens above one (R1, R37). Owner only. Raises PF301.';
