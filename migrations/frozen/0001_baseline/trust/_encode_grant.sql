-- The canonical JSON of a grant (R3): keys in byte order, no white space, ASCII, no escapes.
-- NULL if a field is NULL. Whether the values are valid is for _parse_grant to say.
create function pgfence._encode_grant(p_grant pgfence._grant)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return '{"audience":"' || p_grant.audience
        || '","backend":"' || p_grant.backend
        || '","backendRevision":' || p_grant.backend_revision::text
        || ',"continuesRoot":"' || p_grant.continues_root
        || '","fenceToken":' || p_grant.fence_token::text
        || ',"issuedAt":' || p_grant.issued_at::text
        || ',"issuer":"' || p_grant.issuer
        || '","issuerEpoch":' || p_grant.issuer_epoch::text
        || ',"lease":"' || p_grant.lease
        || '","operationClass":"' || p_grant.operation_class
        || '","operationRoot":"' || p_grant.operation_root
        || '","owner":"' || p_grant.owner
        || '","policyGeneration":' || p_grant.policy_generation::text
        || ',"requestId":"' || p_grant.request_id
        || '","resource":"' || p_grant.resource
        || '","schema":"' || p_grant.schema
        || '","state":"' || p_grant.state
        || '","statusUntil":' || p_grant.status_until::text
        || ',"ttlMs":' || p_grant.ttl_ms::text || '}';
end
$$;
-- next statement
revoke all on function pgfence._encode_grant(pgfence._grant) from public;
-- next statement
comment on function pgfence._encode_grant(pgfence._grant) is
    'The canonical JSON of a grant (R3); NULL if a field is NULL.';
