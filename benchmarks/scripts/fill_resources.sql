-- %(resources)s resources in all, each with a grant that is held. As pgfence_owner.
insert into pgfence.fences
    (resource, highest_fence, operation_root, grant_digest, last_segment, receipt_count, checked_fence, checked_token,
     checked_role, checked_until, checked_version, checked_server_start, issued_fence, current_lease)
select 'batch/' || n, 1, 'root', d, 5, 5, 1, d, 'worker_a', now() + interval '1 hour', 1, pg_postmaster_start_time(), 1,
       'lease-of-' || n
  from generate_series(1, %(resources)s) as n, sha256(convert_to(n::text, 'UTF8')) as d
    on conflict do nothing;
insert into pgfence_registry.grants
    (lease, resource, fence_token, owner, request_id, issuer_epoch, ttl_ms, message, digest, granted_at, lease_ends_at)
select f.current_lease, f.resource, 1, 'worker-a', f.resource, 1, 3600000, 'message', f.grant_digest, now(), f.checked_until
  from pgfence.fences as f
    on conflict do nothing;
