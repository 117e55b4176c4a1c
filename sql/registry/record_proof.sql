-- Records a signed status proof and wakes the worker that waits for it. False when it is no longer the
-- one that is waited for, or the worker's own transaction holds the row: nobody waits for a worker.
create function pgfence_registry.record_proof(p_lease text, p_message text, p_token text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_grant pgfence_registry.grants;
begin
    if p_lease is null or p_message is null or p_token is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'record_proof: an argument is NULL',
            'Pass the lease, the message and the signed token.', 'R53');
    end if;
    update pgfence_registry.proofs as p set token = p_token
     where p.lease = (select w.lease from pgfence_registry.proofs as w
                       where w.lease = p_lease and w.message = p_message and w.token is null
                         for update skip locked);
    if not found then
        return false;
    end if;
    select g.* into strict v_grant from pgfence_registry.grants as g where g.lease = p_lease;
    perform pg_catalog.pg_notify(pgfence_registry._wake_channel(v_grant.owner, v_grant.request_id), '');
    return true;
end
$$;
revoke all on function pgfence_registry.record_proof(text, text, text) from public;
grant execute on function pgfence_registry.record_proof(text, text, text) to pgfence_registry;
comment on function pgfence_registry.record_proof(text, text, text) is
    'Records the token of a status proof, once (R13, R53). Raises PF301.';
