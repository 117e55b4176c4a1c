-- Writes the receipt, and admits the resource in this very transaction (R15, R24). The first
-- admission in a transaction fixes when it must end, also if the lease is renewed since (R20).
create function pgfence._admit(
    p_grant pgfence._grant, p_grant_digest bytea, p_segment_seq bigint, p_payload_digest bytea,
    p_fence pgfence.fences, p_lease_ends_at timestamptz, p_now timestamptz
)
returns pgfence.verdict
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_admitted_before constant boolean := pgfence._is_admitted(p_fence);
    v_until constant timestamptz := case when v_admitted_before then p_fence.admitted_until else p_lease_ends_at end;
    v_receipt pgfence.receipts;
begin
    perform pgfence._attest_guards(p_grant.resource);
    v_receipt := row(
        p_grant.resource, p_grant.fence_token, p_segment_seq, p_grant.operation_root, p_grant_digest, p_payload_digest,
        session_user, p_now, p_fence.last_receipt_digest,
        pgfence._receipt_digest(p_fence.last_receipt_digest, p_grant.resource, p_grant.fence_token, p_segment_seq,
            p_grant.operation_root, p_grant_digest, p_payload_digest, p_now, session_user));
    insert into pgfence.receipts
        (resource, fence_token, segment_seq, operation_root, grant_digest, payload_digest, session_role, accepted_at,
         previous_digest, digest)
    values
        (v_receipt.resource, v_receipt.fence_token, v_receipt.segment_seq, v_receipt.operation_root,
         v_receipt.grant_digest, v_receipt.payload_digest, v_receipt.session_role, v_receipt.accepted_at,
         v_receipt.previous_digest, v_receipt.digest);
    update pgfence.fences as f
       set last_segment = p_segment_seq,
           receipt_count = f.receipt_count + 1,
           last_receipt_digest = v_receipt.digest,
           admitted_transaction = pg_catalog.pg_current_xact_id(),
           admitted_transaction_start = pg_catalog.transaction_timestamp(),
           admitted_backend = pg_catalog.pg_backend_pid(),
           admitted_until = v_until,
           commit_look = case when v_admitted_before then f.commit_look else 0 end
     where f.resource = p_grant.resource
    returning f.* into p_fence;
    perform pgfence._limit_transaction(v_until);
    return pgfence._verdict_of('ACCEPTED', v_receipt, p_fence);
end
$$;
revoke all on function pgfence._admit(pgfence._grant, bytea, bigint, bytea, pgfence.fences, timestamptz, timestamptz)
    from public;
comment on function pgfence._admit(pgfence._grant, bytea, bigint, bytea, pgfence.fences, timestamptz, timestamptz) is
    'Writes the receipt of a segment and admits its resource in this transaction (R15, R20, R24). Raises PF202.';
