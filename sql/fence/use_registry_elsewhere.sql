-- From here on the registry of this database is in another one: a lease is shown by its status proofs (R13).
-- Leases of the registry here end, and when it returns no transaction that they admitted is open. Returns
-- the highest fence token that is known here: the other registry must mint above it (pgfence.place). Called
-- again, it sets the tolerance.
create function pgfence.use_registry_elsewhere(p_clock_tolerance_ms bigint default 500, p_reason text default '')
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before pgfence.configuration;
    v_above bigint;
begin
    perform pgfence._owner_only();
    if p_reason is null or (p_clock_tolerance_ms between 0 and 10000) is not true then
        perform pgfence._raise('INVALID_ARGUMENT', 'use_registry_elsewhere: the tolerance is out of range, or the reason is NULL',
            'The clocks of the two servers may differ by 0 to 10000 ms. The reason may be empty.', 'R13');
    end if;
    perform from pgfence.fences as f order by f.resource for no key update;
    -- Also whoever asks for a new resource is done before, or finds out (_announce_resource, _mint).
    select c.* into strict v_before from pgfence.configuration as c for update;
    select greatest(v_before.fence_base, max(greatest(f.issued_fence, f.highest_fence))) into v_above from pgfence.fences as f;
    if v_before.registry_is_local then
        update pgfence_registry.grants as g set state = 'SUPERSEDED', ended_at = pg_catalog.clock_timestamp()
         where g.state = 'HELD' and g.lease in (select f.current_lease from pgfence.fences as f);
        update pgfence.fences as f set current_lease = null where f.current_lease is not null;
        update pgfence.configuration as c
           set registry_is_local = false,
               proofs_from = greatest(c.proofs_from, (select pg_catalog.clock_timestamp() from pgfence_registry.grants limit 1));
    end if;
    update pgfence.configuration as c set clock_tolerance_ms = p_clock_tolerance_ms;
    insert into pgfence.journal (action, reason, detail)
    values ('REGISTRY_ELSEWHERE', p_reason, pg_catalog.jsonb_build_object(
        'registry_was_here', v_before.registry_is_local, 'clock_tolerance_ms', p_clock_tolerance_ms, 'above', v_above));
    return v_above;
end
$$;
revoke all on function pgfence.use_registry_elsewhere(bigint, text) from public;
comment on function pgfence.use_registry_elsewhere(bigint, text) is
    'Moves the registry of this database to another one, whose clock differs by at most so many milliseconds; returns the highest known fence token (R13, R37). Owner only. Raises PF301.';
