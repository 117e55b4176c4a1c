-- Writes the receipt of a segment behind the one before it in the chain (R15, R22). The caller has
-- the fence row lock. (In PL/pgSQL, which keeps plans: before PostgreSQL 18, SQL functions do not.)
create function pgfence._write_receipt(
    p_fence pgfence.fences, p_segment_seq bigint, p_payload_digest bytea, p_accepted_at timestamptz
)
returns pgfence.receipts
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_receipt pgfence.receipts;
begin
    select r.digest into v_receipt.previous_digest from pgfence.receipts as r
     where r.resource = p_fence.resource order by r.fence_token desc, r.segment_seq desc limit 1;
    v_receipt.previous_digest := coalesce(v_receipt.previous_digest, '');
    v_receipt.digest := pgfence._receipt_digest(
        v_receipt.previous_digest, p_fence.resource, p_fence.highest_fence, p_segment_seq, p_fence.operation_root,
        p_fence.grant_digest, p_payload_digest, p_accepted_at, session_user);
    v_receipt.payload_digest := p_payload_digest;
    v_receipt.segment_seq := p_segment_seq;
    v_receipt.accepted_at := p_accepted_at;
    insert into pgfence.receipts as r
        (resource, fence_token, segment_seq, operation_root, grant_digest, payload_digest, session_role, accepted_at,
         previous_digest, digest)
    values
        (p_fence.resource, p_fence.highest_fence, p_segment_seq, p_fence.operation_root, p_fence.grant_digest,
         p_payload_digest, session_user, p_accepted_at, v_receipt.previous_digest, v_receipt.digest);
    return v_receipt;
end
$$;
revoke all on function pgfence._write_receipt(pgfence.fences, bigint, bytea, timestamptz) from public;
comment on function pgfence._write_receipt(pgfence.fences, bigint, bytea, timestamptz) is
    'Appends a receipt to the chain of its resource (R15, R22).';
