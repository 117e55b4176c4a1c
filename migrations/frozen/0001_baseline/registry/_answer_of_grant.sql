-- Answer about a grant. The token goes only to the request that asked for it.
create function pgfence_registry._answer_of_grant(p_grant pgfence_registry.grants, p_with_token boolean)
returns pgfence_registry.answer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pg_catalog.clock_timestamp();
    v_answer pgfence_registry.answer;
begin
    v_answer.state := pgfence_registry._state_of(p_grant, v_now);
    v_answer.request_id := p_grant.request_id;
    v_answer.resource := p_grant.resource;
    v_answer.lease := p_grant.lease;
    v_answer.fence_token := p_grant.fence_token;
    v_answer.grant_digest := pg_catalog.encode(p_grant.digest, 'hex');
    v_answer.ttl_ms := p_grant.ttl_ms;
    v_answer.lease_ends_at := p_grant.lease_ends_at;
    v_answer.remaining_ms := greatest(0, pg_catalog.floor(extract(epoch from p_grant.lease_ends_at - v_now) * 1000));
    if v_answer.state = 'HELD' and p_grant.token is null then
        v_answer.state := 'SIGNING';
        v_answer.look_again_ms := 200;
        v_answer.wake_channel := pgfence_registry._wake_channel(p_grant.owner, p_grant.request_id);
    elsif v_answer.state = 'HELD' and p_with_token then
        v_answer.token := p_grant.token;
        v_answer.in_shadow := pgfence._shadow_prefix(p_grant.resource) is not null;
    end if;
    return v_answer;
end
$$;
-- next statement
revoke all on function pgfence_registry._answer_of_grant(pgfence_registry.grants, boolean) from public;
-- next statement
comment on function pgfence_registry._answer_of_grant(pgfence_registry.grants, boolean) is
    'Answer about a grant: its state now and what is left of the lease.';
