-- A registry process will not sign this grant: the key that it rests on is gone. Nobody has seen the
-- grant, so it ends here, and the request must be seen at the coordinator again. False when it is
-- signed or over, or a row is locked: then look again. Never waits for a lock.
create function pgfence_registry.refuse_signature(p_lease text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_resource text;
    v_grant pgfence_registry.grants;
begin
    if p_lease is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'refuse_signature: the lease is NULL', 'Pass the lease.', 'R53');
    end if;
    select f.resource into v_resource
      from pgfence_registry.grants as g join pgfence.fences as f on f.resource = g.resource
     where g.lease = p_lease for no key update of f skip locked;
    if not found then
        return false;
    end if;
    select g.* into v_grant from pgfence_registry.grants as g
     where g.lease = p_lease and g.token is null and g.state = 'HELD' for update skip locked;
    if not found then
        return false;
    end if;
    -- Whoever asks again for it in a transaction that goes on has locked this row alone.
    perform from pgfence_registry.requests as r
      where r.workload = v_grant.owner and r.request_id = v_grant.request_id for no key update skip locked;
    if not found then
        return false;
    end if;
    update pgfence_registry.grants as g set state = 'SUPERSEDED', ended_at = pg_catalog.clock_timestamp()
     where g.lease = p_lease;
    update pgfence.fences as f set current_lease = null
     where f.resource = v_resource and f.current_lease = p_lease;
    perform pgfence_registry._forget_token(v_grant.owner, v_grant.request_id);
    perform pgfence_registry._wake_next(v_resource);
    return true;
end
$$;
revoke all on function pgfence_registry.refuse_signature(text) from public;
grant execute on function pgfence_registry.refuse_signature(text) to pgfence_registry;
comment on function pgfence_registry.refuse_signature(text) is
    'Ends a grant that was decided and never signed (R37, R53). Raises PF301.';
