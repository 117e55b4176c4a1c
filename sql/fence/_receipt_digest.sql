-- Digest of a receipt over everything it says and the digest of the one before (R22). No part but
-- the last can hold a space, so the text can be read in one way only.
create function pgfence._receipt_digest(
    p_previous_digest bytea, p_resource text, p_fence_token bigint, p_segment_seq bigint,
    p_operation_root text, p_grant_digest bytea, p_payload_digest bytea, p_accepted_at timestamptz,
    p_session_role text
)
returns bytea
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.concat_ws(' ',
        'receipt.v1', pg_catalog.encode(p_previous_digest, 'hex'), p_resource, p_fence_token, p_segment_seq,
        p_operation_root, pg_catalog.encode(p_grant_digest, 'hex'), pg_catalog.encode(p_payload_digest, 'hex'),
        (pg_catalog.date_part('epoch', p_accepted_at) * 1000000)::bigint, p_session_role), 'UTF8'));
end
$$;
revoke all on function pgfence._receipt_digest(bytea, text, bigint, bigint, text, bytea, bytea, timestamptz, text)
    from public;
comment on function pgfence._receipt_digest(bytea, text, bigint, bigint, text, bytea, bytea, timestamptz, text) is
    'SHA-256 over a receipt and the digest of the one before it (R22).';
