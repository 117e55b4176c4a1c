-- Where a resource stands: what a successor asks before it goes on. An operation that takes up
-- earlier ones (continues_root) counts their segments too.
create function pgfence.position(p_resource text)
returns table (
    highest_fence bigint, operation_root text, last_segment bigint, owner text, continues_root text, paused boolean,
    total_segments bigint
)
language sql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    with recursive taken_up as (
        select o.resource, o.fence_token, o.continues_root, o.pruned_segments
          from pgfence.fences as f
          join pgfence.operations as o on o.resource = f.resource and o.fence_token = f.highest_fence
         where f.resource = p_resource
        union all
        select e.resource, e.fence_token, e.continues_root, e.pruned_segments
          from taken_up as t
          join pgfence.operations as e on e.resource = t.resource and e.operation_root = t.continues_root
           and e.fence_token < t.fence_token
    )
    select f.highest_fence, o.operation_root, f.last_segment, o.owner, o.continues_root, f.paused_because is not null,
           (select coalesce(sum(coalesce(l.segment_seq, t.pruned_segments)), 0)::bigint
              from taken_up as t
              left join lateral (
                   select r.segment_seq from pgfence.receipts as r
                    where r.resource = t.resource and r.fence_token = t.fence_token
                    order by r.segment_seq desc limit 1) as l on true)
      from pgfence.fences as f
      left join pgfence.operations as o on o.resource = f.resource and o.fence_token = f.highest_fence
     where f.resource = p_resource
$$;
revoke all on function pgfence.position(text) from public;
grant execute on function pgfence.position(text) to pgfence_app, pgfence_auditor;
comment on function pgfence.position(text) is
    'Highest fence of a resource, its root and owner, and the last accepted segment; total_segments counts those of the operations that it took up as well. No row if nothing was ever asked for.';
