-- Mints a fence above everything that was ever issued or accepted, and issues the grant. The caller
-- holds the fence row lock (R35, R37).
create function pgfence_registry._mint(
    p_request pgfence_registry.requests, p_fence pgfence.fences, p_now timestamptz
)
returns pgfence_registry.answer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_configuration pgfence.configuration;
    v_bundle pgfence.trust_bundles;
    v_term pgfence_registry.terms;
    v_claims pgfence._grant;
    v_grant pgfence_registry.grants;
    v_issued_at constant bigint := pgfence._to_microseconds(p_now);
begin
    select c.* into strict v_configuration from pgfence.configuration as c;
    if not v_configuration.registry_is_local then
        perform pgfence._raise('REGISTRY_ELSEWHERE', 'request: the registry of this database is in another one',
            'Ask there, in that database; in Python: pgfence.connect(dsn, registry=...).', 'R13');
    end if;
    select b.* into v_bundle from pgfence.trust_bundles as b order by b.version desc limit 1;
    if not found then
        perform pgfence._raise('TRUST_REFUSED', 'no trust bundle is installed: nothing can be granted',
            'Run: pgfence trust init', 'R31');
    end if;
    select t.* into strict v_term from pgfence_registry.terms as t where t.term = p_request.term;
    v_claims.schema := 'lockGrant.v1';
    v_claims.audience := pgfence_registry._audience_of(p_request.resource);
    v_claims.resource := p_request.resource;
    v_claims.owner := p_request.workload;
    v_claims.request_id := p_request.request_id;
    v_claims.lease := 'lease-' || pg_catalog.gen_random_uuid();
    v_claims.operation_class := p_request.operation_class;
    v_claims.operation_root := p_request.operation_root;
    v_claims.continues_root := p_request.continues_root;
    v_claims.fence_token := greatest(p_fence.issued_fence, p_fence.highest_fence, v_configuration.fence_base) + 1;
    v_claims.backend := v_term.coordinator;
    v_claims.backend_revision := case when v_term.rising_tokens and v_term.coordinator <> 'postgres'
                                      then p_request.backend_revision else v_claims.fence_token end;
    v_claims.policy_generation := (pgfence._policy_of(p_request.resource)).generation;
    v_claims.issuer := v_configuration.issuer;
    v_claims.issuer_epoch := greatest(v_configuration.issuer_epoch, v_bundle.lowest_epoch);
    v_claims.issued_at := v_issued_at;
    v_claims.ttl_ms := p_request.ttl_ms;
    v_claims.status_until := v_issued_at + p_request.ttl_ms * 500;
    v_claims.state := 'HELD';

    insert into pgfence_registry.grants as g
        (lease, resource, fence_token, owner, request_id, issuer_epoch, ttl_ms, message, digest, granted_at, lease_ends_at,
         term)
    select v_claims.lease, v_claims.resource, v_claims.fence_token, v_claims.owner, v_claims.request_id,
           v_claims.issuer_epoch, v_claims.ttl_ms, m.message,
           pg_catalog.sha256(pg_catalog.convert_to(m.message, 'UTF8')), p_now,
           p_now + v_claims.ttl_ms * interval '1 millisecond', v_term.term
      from (select pgfence._encode_grant(v_claims)) as m (message)
    returning g.* into strict v_grant;
    update pgfence.fences as f set issued_fence = v_claims.fence_token, current_lease = v_claims.lease
     where f.resource = v_claims.resource;
    update pgfence_registry.requests as r set state = 'GRANTED', lease = v_claims.lease
     where r.workload = p_request.workload and r.request_id = p_request.request_id;
    -- Waiters that have been dead for a day are not coming back.
    delete from pgfence_registry.requests as d
     where d.ctid in (select r.ctid from pgfence_registry.requests as r
                       where r.resource = v_claims.resource and r.state = 'WAITING'
                         and r.alive_until < pg_catalog.clock_timestamp() - interval '1 day'
                         for update skip locked);
    perform pg_catalog.pg_notify('pgfence_sign', '');
    return pgfence_registry._answer_of_grant(v_grant, false);
end
$$;
revoke all on function pgfence_registry._mint(pgfence_registry.requests, pgfence.fences, timestamptz) from public;
comment on function pgfence_registry._mint(pgfence_registry.requests, pgfence.fences, timestamptz) is
    'Mints a fence and issues the grant, to be signed by a registry process (R35, R37, R53). Raises PF305, PF308.';
