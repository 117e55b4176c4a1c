-- Walks the chain of a resource, over what was pruned and then over its receipts, and checks each against
-- the one before it (R22). p_older_than: goes no further than receipts of superseded fences that are older;
-- p_limit: no further than so many receipts. `receipts` are those that fit, `from` to `to`; `problem` says
-- why the next one, or a stretch, does not.
create function pgfence._walk_receipts(
    p_resource text, p_older_than timestamptz, p_limit bigint,
    out receipts bigint, out pruned bigint,
    out from_fence bigint, out from_segment bigint, out to_fence bigint, out to_segment bigint,
    out previous_digest bytea, out last_digest bytea,
    out bad_fence bigint, out bad_segment bigint, out problem text
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_stretch pgfence.pruned_stretches;
    v_receipt pgfence.receipts;
    v_highest_fence bigint;
begin
    select f.highest_fence into v_highest_fence from pgfence.fences as f where f.resource = p_resource;
    receipts := 0;
    pruned := 0;
    to_fence := 0;
    to_segment := 0;
    last_digest := '';
    for v_stretch in
        select s.* from pgfence.pruned_stretches as s where s.resource = p_resource order by s.from_fence, s.from_segment
    loop
        problem := case
            when v_stretch.previous_digest <> last_digest
              or v_stretch.from_segment <> case v_stretch.from_fence when to_fence then to_segment + 1 else 1 end
                then 'the pruned stretch that begins here does not follow what was before it'
            when v_stretch.digest <> pgfence._stretch_digest(v_stretch)
                then 'what the pruned stretch that begins here says does not give its digest'
        end;
        if problem is not null then
            bad_fence := v_stretch.from_fence;
            bad_segment := v_stretch.from_segment;
            return;
        end if;
        pruned := pruned + v_stretch.receipts;
        to_fence := v_stretch.to_fence;
        to_segment := v_stretch.to_segment;
        last_digest := v_stretch.last_digest;
    end loop;
    previous_digest := last_digest;
    for v_receipt in
        select r.* from pgfence.receipts as r where r.resource = p_resource
         order by r.fence_token, r.segment_seq limit p_limit
    loop
        exit when v_receipt.fence_token >= v_highest_fence and p_older_than is not null
               or v_receipt.accepted_at >= p_older_than;
        problem := case
            when v_receipt.segment_seq <> case v_receipt.fence_token when to_fence then to_segment + 1 else 1 end
                then 'a receipt before this one is missing'
            when v_receipt.previous_digest <> last_digest
                then 'it does not follow the receipt before it'
            when v_receipt.digest <> pgfence._receipt_digest(v_receipt.previous_digest, v_receipt.resource,
                     v_receipt.fence_token, v_receipt.segment_seq, v_receipt.operation_root, v_receipt.grant_digest,
                     v_receipt.payload_digest, v_receipt.accepted_at, v_receipt.session_role)
                then 'its contents do not give its digest'
        end;
        if problem is not null then
            bad_fence := v_receipt.fence_token;
            bad_segment := v_receipt.segment_seq;
            return;
        end if;
        if receipts = 0 then
            from_fence := v_receipt.fence_token;
            from_segment := v_receipt.segment_seq;
        end if;
        receipts := receipts + 1;
        to_fence := v_receipt.fence_token;
        to_segment := v_receipt.segment_seq;
        last_digest := v_receipt.digest;
    end loop;
end
$$;
-- next statement
revoke all on function pgfence._walk_receipts(text, timestamptz, bigint) from public;
-- next statement
comment on function pgfence._walk_receipts(text, timestamptz, bigint) is
    'The chain of a resource as far as it fits together, and the first thing that does not fit (R22).';
