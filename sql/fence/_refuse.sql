-- Leaves evidence of a refusal and answers it (R18). A grant digest means that the signature was good.
-- In shadow the answer is WOULD_REFUSE, and names the refusal (R28).
create function pgfence._refuse(
    p_verdict text, p_reason text, p_explanation text,
    p_grant pgfence._grant, p_grant_digest bytea, p_fence pgfence.fences,
    p_segment_seq bigint, p_payload_digest bytea, p_claimed_resource text
)
returns pgfence.verdict
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_shadow_prefix constant text := pgfence._shadow_prefix(p_claimed_resource);
    v_verdict pgfence.verdict;
begin
    perform pgfence._record_refusal(p_verdict, p_reason, p_grant, p_grant_digest, p_grant_digest is not null,
                                    p_segment_seq, v_shadow_prefix);
    v_verdict.verdict := case when v_shadow_prefix is null then p_verdict else 'WOULD_REFUSE' end;
    v_verdict.would_refuse := case when v_shadow_prefix is not null then p_verdict end;
    v_verdict.reason := p_reason;
    v_verdict.explanation := p_explanation;
    v_verdict.resource := p_grant.resource;
    v_verdict.fence_token := p_grant.fence_token;
    v_verdict.segment_seq := p_segment_seq;
    v_verdict.highest_fence := p_fence.highest_fence;
    v_verdict.last_segment := p_fence.last_segment;
    v_verdict.payload_digest := pg_catalog.encode(p_payload_digest, 'hex');
    return v_verdict;
end
$$;
revoke all on function pgfence._refuse(text, text, text, pgfence._grant, bytea, pgfence.fences, bigint, bytea, text)
    from public;
comment on function pgfence._refuse(text, text, text, pgfence._grant, bytea, pgfence.fences, bigint, bytea, text) is
    'Records a refusal in the server log and a bounded row, and returns it as a verdict (R18, R28).';
