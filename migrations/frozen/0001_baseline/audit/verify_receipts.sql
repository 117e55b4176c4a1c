-- Walks the hash chain of a resource's receipts and names the first one that does not fit (R22).
create function pgfence.verify_receipts(p_resource text)
returns table (resource text, receipts bigint, ok boolean, first_bad_fence bigint, first_bad_segment bigint, problem text)
language plpgsql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_receipt pgfence.receipts;
    v_fence pgfence.fences;
    v_previous bytea := '';
    v_last_fence bigint := 0;
    v_last_segment bigint := 0;
begin
    resource := p_resource;
    receipts := 0;
    ok := true;
    for v_receipt in
        select r.* from pgfence.receipts as r where r.resource = p_resource order by r.fence_token, r.segment_seq
    loop
        receipts := receipts + 1;
        problem := case
            when v_receipt.segment_seq <> case when v_receipt.fence_token = v_last_fence then v_last_segment + 1 else 1 end
                then 'a receipt before this one is missing'
            when v_receipt.previous_digest <> v_previous
                then 'it does not follow the receipt before it'
            when v_receipt.digest <> pgfence._receipt_digest(v_receipt.previous_digest, v_receipt.resource,
                     v_receipt.fence_token, v_receipt.segment_seq, v_receipt.operation_root, v_receipt.grant_digest,
                     v_receipt.payload_digest, v_receipt.accepted_at, v_receipt.session_role)
                then 'its contents do not give its digest'
        end;
        if problem is not null then
            ok := false;
            first_bad_fence := v_receipt.fence_token;
            first_bad_segment := v_receipt.segment_seq;
            return next;
            return;
        end if;
        v_previous := v_receipt.digest;
        v_last_fence := v_receipt.fence_token;
        v_last_segment := v_receipt.segment_seq;
    end loop;
    select f.* into v_fence from pgfence.fences as f where f.resource = p_resource;
    if receipts <> coalesce(v_fence.receipt_count, 0)
       or v_fence.last_segment > 0 and (v_last_fence, v_last_segment) <> (v_fence.highest_fence, v_fence.last_segment) then
        ok := false;
        first_bad_fence := v_fence.highest_fence;
        first_bad_segment := v_fence.last_segment;
        problem := pg_catalog.format('the chain ends early: %s receipts are there, %s were written', receipts,
                                     coalesce(v_fence.receipt_count, 0));
    end if;
    return next;
end
$$;
-- next statement
revoke all on function pgfence.verify_receipts(text) from public;
-- next statement
grant execute on function pgfence.verify_receipts(text) to pgfence_app, pgfence_auditor;
-- next statement
comment on function pgfence.verify_receipts(text) is
    'One row: whether the receipt chain of a resource is whole, else the first bad receipt and why (R22).';
