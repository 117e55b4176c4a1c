-- Makes a grant's fence the highest one of its resource (R15), and remembers root and verification.
create function pgfence._raise_fence(p_known pgfence._authentication, p_now timestamptz)
returns pgfence.fences
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_grant constant pgfence._grant := p_known.grant_claims;
    v_fence pgfence.fences;
begin
    insert into pgfence.operations
        (resource, fence_token, operation_root, continues_root, operation_class, owner, lease, request_id, issued_at,
         grant_digest, token_digest, grant_message, bundle_version, key_expires_at, first_accepted_at)
    values
        (v_grant.resource, v_grant.fence_token, v_grant.operation_root, v_grant.continues_root, v_grant.operation_class,
         v_grant.owner, v_grant.lease, v_grant.request_id, v_grant.issued_at, p_known.grant_digest,
         p_known.token_digest, pgfence._encode_grant(v_grant), p_known.bundle_version, p_known.key_expires_at, p_now);
    update pgfence.fences as f
       set highest_fence = v_grant.fence_token, operation_root = v_grant.operation_root,
           grant_digest = p_known.grant_digest, last_segment = 0
     where f.resource = v_grant.resource
    returning f.* into strict v_fence;
    return v_fence;
end
$$;
revoke all on function pgfence._raise_fence(pgfence._authentication, timestamptz) from public;
comment on function pgfence._raise_fence(pgfence._authentication, timestamptz) is
    'Makes a grant''s fence the highest one of its resource, with no segment yet (R15, R21).';
