-- Prolongs a lease by its TTL from now. Changes neither fence nor grant, touches only the grant's
-- own row, and never waits for an open segment (R35, R52, R53). A lease that is over stays over; one
-- whose resource the lock service has given to another session is not prolonged, and ends by itself.
create function pgfence_registry.renew(p_lease text)
returns pgfence_registry.answer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_grant pgfence_registry.grants := pgfence_registry._own_grant(p_lease);
    v_answer pgfence_registry.answer;
    v_configuration pgfence.configuration;
begin
    if v_grant.lease is null then
        return pgfence_registry._unknown(p_lease);
    end if;
    select c.* into strict v_configuration from pgfence.configuration as c;
    update pgfence_registry.grants as g
       set lease_ends_at = greatest(g.lease_ends_at, pg_catalog.clock_timestamp() + g.ttl_ms * interval '1 millisecond')
     where g.lease = p_lease and g.state = 'HELD' and g.token is not null
       and g.issuer_epoch >= v_configuration.epoch_floor and pgfence._is_recorded_database(v_configuration)
       and g.lease_ends_at > pg_catalog.clock_timestamp()
       and not pgfence_registry._is_taken(g)
    returning g.* into v_grant;
    if found then
        -- The row stays locked until this transaction ends, and the next owner waits for it: the registry
        -- sees who it is (R20).
        perform pgfence_registry._take_mark(p_lease);
        if pgfence._shadow_prefix(v_grant.resource) is null then
            perform pgfence._limit_transaction(v_grant.lease_ends_at);
        end if;
        return pgfence_registry._answer_of_grant(v_grant, false);
    end if;
    v_grant := pgfence_registry._own_grant(p_lease);
    v_answer := pgfence_registry._answer_of_grant(v_grant, false);
    if v_answer.state = 'HELD' then
        v_answer := pgfence_registry._revoked(v_answer);
        if pgfence_registry._is_taken(v_grant) then
            v_answer.reason := 'the lock service has given the resource to another session';
        end if;
    end if;
    return v_answer;
end
$$;
revoke all on function pgfence_registry.renew(text) from public;
grant execute on function pgfence_registry.renew(text) to pgfence_app;
comment on function pgfence_registry.renew(text) is
    'Prolongs one of the caller''s leases by its TTL, if it is held (R35, R36). Raises PF301, PF302.';
