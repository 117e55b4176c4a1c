-- Gives a lease back. Takes the fence row first, so it waits for an open segment of the owner, and
-- the next owner's grant waits for it (R52). Releasing twice, or a lease that is over, changes nothing.
create function pgfence_registry.release(p_lease text)
returns pgfence_registry.answer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_grant pgfence_registry.grants := pgfence_registry._own_grant(p_lease);
begin
    if v_grant.lease is null then
        return pgfence_registry._unknown(p_lease);
    end if;
    -- Nothing to give back: a past owner must not take the lock that the present one needs.
    if pgfence_registry._state_of(v_grant, pg_catalog.clock_timestamp()) <> 'HELD' then
        return pgfence_registry._answer_of_grant(v_grant, false);
    end if;
    perform from pgfence.fences as f where f.resource = v_grant.resource for no key update;
    -- Both rows stay locked until this transaction ends, and the next owner waits for it: R20.
    if pgfence._shadow_prefix(v_grant.resource) is null then
        perform pgfence._limit_transaction(
            greatest(v_grant.lease_ends_at, pg_catalog.clock_timestamp() + interval '5 seconds'));
    end if;
    update pgfence_registry.grants as g
       set state = 'RELEASED', ended_at = pg_catalog.clock_timestamp()
     where g.lease = p_lease and g.state = 'HELD' and g.lease_ends_at > pg_catalog.clock_timestamp()
    returning g.* into v_grant;
    if not found then
        return pgfence_registry._answer_of_grant(pgfence_registry._own_grant(p_lease), false);
    end if;
    update pgfence.fences as f set current_lease = null
     where f.resource = v_grant.resource and f.current_lease = p_lease;
    perform pgfence_registry._wake_next(v_grant.resource);
    return pgfence_registry._answer_of_grant(v_grant, false);
end
$$;
revoke all on function pgfence_registry.release(text) from public;
grant execute on function pgfence_registry.release(text) to pgfence_app;
comment on function pgfence_registry.release(text) is
    'Gives one of the caller''s leases back and wakes the next waiter (R36). Raises PF301, PF302.';
