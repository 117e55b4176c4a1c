-- %(resources)s resources in all, each with a grant that is held: copies of the first. As pgfence_owner.
create function pg_temp.another(fence pgfence.fences, n bigint) returns pgfence.fences
language plpgsql as $$
begin
    fence.resource := 'batch/' || n;
    fence.grant_digest := sha256(convert_to(n::text, 'UTF8'));
    fence.current_lease := 'lease-of-' || n;
    fence.checked_hash := n;
    return fence;
end
$$;
insert into pgfence.fences
select a.*
  from pgfence.fences as f, generate_series(1, %(resources)s) as n, pg_temp.another(f, n) as a
 where f.resource = 'batch/1'
    on conflict do nothing;
insert into pgfence_registry.grants
    (lease, resource, fence_token, owner, request_id, issuer_epoch, ttl_ms, message, digest, granted_at, lease_ends_at)
select f.current_lease, f.resource, f.highest_fence, 'worker-a', f.resource, 1, 3600000, 'message', f.grant_digest, now(),
       now() + interval '1 hour'
  from pgfence.fences as f
    on conflict do nothing;
