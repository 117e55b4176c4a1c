-- The canonical JSON of a status proof (R3). NULL if a field is NULL.
create function pgfence._encode_status(p_status pgfence._status)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return '{"audience":"' || p_status.audience
        || '","grantDigest":"' || p_status.grant_digest
        || '","issuedAt":' || p_status.issued_at::text
        || ',"issuerEpoch":' || p_status.issuer_epoch::text
        || ',"revision":' || p_status.revision::text
        || ',"schema":"' || p_status.schema
        || '","state":"' || p_status.state
        || '","validUntil":' || p_status.valid_until::text || '}';
end
$$;
-- next statement
revoke all on function pgfence._encode_status(pgfence._status) from public;
-- next statement
comment on function pgfence._encode_status(pgfence._status) is
    'The canonical JSON of a status proof (R3); NULL if a field is NULL.';
