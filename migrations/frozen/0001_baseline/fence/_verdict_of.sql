-- Answer of an accepting verdict, from the receipt (none for ADVANCED) and the fence row.
create function pgfence._verdict_of(p_verdict text, p_receipt pgfence.receipts, p_fence pgfence.fences)
returns pgfence.verdict
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_verdict pgfence.verdict;
begin
    v_verdict.verdict := p_verdict;
    v_verdict.resource := p_fence.resource;
    v_verdict.fence_token := p_fence.highest_fence;
    v_verdict.segment_seq := p_receipt.segment_seq;
    v_verdict.highest_fence := p_fence.highest_fence;
    v_verdict.last_segment := p_fence.last_segment;
    v_verdict.receipt := pg_catalog.encode(p_receipt.digest, 'hex');
    v_verdict.payload_digest := pg_catalog.encode(p_receipt.payload_digest, 'hex');
    v_verdict.accepted_at := p_receipt.accepted_at;
    return v_verdict;
end
$$;
-- next statement
revoke all on function pgfence._verdict_of(text, pgfence.receipts, pgfence.fences) from public;
-- next statement
comment on function pgfence._verdict_of(text, pgfence.receipts, pgfence.fences) is
    'ACCEPTED, REPLAYED or ADVANCED as an answer.';
