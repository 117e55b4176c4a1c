-- Walks the hash chain of a resource, over what was pruned and over its receipts, and names the first one
-- that does not fit (R22), or of which pgfence.operations does not say what its grant said: who wrote it.
create function pgfence.verify_receipts(p_resource text)
returns table (
    resource text, receipts bigint, pruned bigint, ok boolean, first_bad_fence bigint, first_bad_segment bigint,
    problem text
)
language plpgsql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_walk constant record := pgfence._walk_receipts(p_resource, null, null);
    v_fence pgfence.fences;
    v_noted bigint;
begin
    resource := p_resource;
    receipts := v_walk.receipts;
    pruned := v_walk.pruned;
    first_bad_fence := v_walk.bad_fence;
    first_bad_segment := v_walk.bad_segment;
    problem := v_walk.problem;
    if problem is null then
        select f.* into v_fence from pgfence.fences as f where f.resource = p_resource;
        select coalesce(sum(o.pruned_segments), 0) into v_noted from pgfence.operations as o where o.resource = p_resource;
        problem := case
            when v_fence.resource is null
                then case when receipts + pruned > 0
                            or exists (select from pgfence.operations as o where o.resource = p_resource)
                          then 'its row of pgfence.fences is gone' end
            when receipts + pruned <> v_fence.receipt_count
              or v_fence.last_segment <> case v_walk.to_fence when v_fence.highest_fence then v_walk.to_segment else 0 end
                then pg_catalog.format('the chain ends early: %s receipts are there and %s were pruned, %s were written',
                                       receipts, pruned, v_fence.receipt_count)
            when v_fence.last_digest <> v_walk.last_digest
                then 'the last receipt is not the one that was written last'
            when pruned <> v_noted
                then pg_catalog.format('%s receipts were pruned, and pgfence.operations says %s', pruned, v_noted)
        end;
        if problem is not null then
            first_bad_fence := v_fence.highest_fence;
            first_bad_segment := v_fence.last_segment;
        end if;
    end if;
    if problem is null then
        -- The digest of the grant is in the chain, and so is whatever its message says.
        select r.fence_token, r.first_segment into first_bad_fence, first_bad_segment
          from (select a.fence_token, a.grant_digest, min(a.segment_seq) as first_segment
                  from pgfence.receipts as a where a.resource = p_resource group by a.fence_token, a.grant_digest) as r
         where not exists (
               select from pgfence.operations as o
                where o.resource = p_resource and o.fence_token = r.fence_token and o.grant_digest = r.grant_digest
                  and case when pg_catalog.sha256(pg_catalog.convert_to(o.grant_message, 'UTF8')) = o.grant_digest
                           then o.grant_message::jsonb end
                      @> pg_catalog.jsonb_build_object(
                          'resource', o.resource, 'fenceToken', o.fence_token, 'operationRoot', o.operation_root,
                          'continuesRoot', o.continues_root, 'operationClass', o.operation_class, 'owner', o.owner,
                          'lease', o.lease, 'requestId', o.request_id, 'issuedAt', o.issued_at))
         order by r.fence_token, r.first_segment limit 1;
        if found then
            problem := 'pgfence.operations does not say of its grant what the grant said';
        end if;
    end if;
    ok := problem is null;
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
