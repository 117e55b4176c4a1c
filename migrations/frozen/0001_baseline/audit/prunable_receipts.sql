-- What pruning would take now: for each resource the start of its chain that is older than p_retention, up
-- to the present fence, which keeps all of its receipts (R22). Reads only.
create function pgfence.prunable_receipts(p_retention interval, p_resource text default null)
returns table (resource text, receipts bigint, to_fence bigint, to_segment bigint, bytes bigint)
language plpgsql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_older_than constant timestamptz := pgfence._retention_ends(p_retention);
begin
    return query
    select f.resource, w.receipts, w.last[1], w.last[2], w.bytes
      from pgfence.fences as f
      left join lateral (
            select r.fence_token, r.segment_seq from pgfence.receipts as r
             where r.resource = f.resource and (r.fence_token >= f.highest_fence or r.accepted_at >= v_older_than)
             order by r.fence_token, r.segment_seq limit 1) as kept on true
     cross join lateral (
            select count(*) as receipts, max(array[r.fence_token, r.segment_seq]) as last,
                   sum(pg_catalog.pg_column_size(r))::bigint as bytes
              from pgfence.receipts as r
             where r.resource = f.resource
               and (r.fence_token, r.segment_seq) < (coalesce(kept.fence_token, f.highest_fence), coalesce(kept.segment_seq, 1))) as w
     where (p_resource is null or f.resource = p_resource) and w.receipts > 0
     order by f.resource;
end
$$;
-- next statement
revoke all on function pgfence.prunable_receipts(interval, text) from public;
-- next statement
grant execute on function pgfence.prunable_receipts(interval, text) to pgfence_auditor;
-- next statement
comment on function pgfence.prunable_receipts(interval, text) is
    'Receipts that prune_receipts would take, by resource (R22). Raises PF301 for a retention below an hour.';
