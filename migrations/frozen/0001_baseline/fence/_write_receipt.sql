-- Writes the receipt of a segment behind the one before it in the chain (R15, R22). The caller has
-- the fence row lock.
create function pgfence._write_receipt(
    p_resource text, p_fence_token bigint, p_segment_seq bigint, p_operation_root text, p_grant_digest bytea,
    p_payload_digest bytea, p_accepted_at timestamptz
)
returns pgfence.receipts
language sql
set search_path = pg_catalog, pg_temp
as $$
    insert into pgfence.receipts as r
        (resource, fence_token, segment_seq, operation_root, grant_digest, payload_digest, session_role, accepted_at,
         previous_digest, digest)
    select p_resource, p_fence_token, p_segment_seq, p_operation_root, p_grant_digest, p_payload_digest, session_user,
           p_accepted_at, b.digest,
           pgfence._receipt_digest(b.digest, p_resource, p_fence_token, p_segment_seq, p_operation_root, p_grant_digest,
                                   p_payload_digest, p_accepted_at, session_user)
      from (select coalesce(
                (select l.digest from pgfence.receipts as l where l.resource = p_resource
                  order by l.fence_token desc, l.segment_seq desc limit 1), '')) as b (digest)
    returning r.*
$$;
-- next statement
revoke all on function pgfence._write_receipt(text, bigint, bigint, text, bytea, bytea, timestamptz) from public;
-- next statement
comment on function pgfence._write_receipt(text, bigint, bigint, text, bytea, bytea, timestamptz) is
    'Appends a receipt to the chain of its resource (R15, R22).';
