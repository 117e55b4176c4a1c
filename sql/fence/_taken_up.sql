-- The operations behind a root: itself, and those that it took up (continues_root), with the number of
-- segments of each and of those before it. Pruned segments count.
create function pgfence._taken_up(p_resource text, p_operation_root text)
returns table (fence_token bigint, operation_root text, segments bigint, earlier_segments bigint)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    with recursive taken_up as (
        select o.resource, o.fence_token, o.operation_root, o.continues_root, o.pruned_segments
          from pgfence.operations as o
         where o.resource = p_resource and o.operation_root = p_operation_root
        union all
        select e.resource, e.fence_token, e.operation_root, e.continues_root, e.pruned_segments
          from taken_up as t
          join pgfence.operations as e on e.resource = t.resource and e.operation_root = t.continues_root
           and e.fence_token < t.fence_token
    ), counted as (
        select t.fence_token, t.operation_root, coalesce(l.segment_seq, t.pruned_segments) as segments
          from taken_up as t
          left join lateral (
               select r.segment_seq from pgfence.receipts as r
                where r.resource = t.resource and r.fence_token = t.fence_token
                order by r.segment_seq desc limit 1) as l on true
    )
    select c.fence_token, c.operation_root, c.segments,
           (sum(c.segments) over (order by c.fence_token) - c.segments)::bigint
      from counted as c
$$;
revoke all on function pgfence._taken_up(text, text) from public;
comment on function pgfence._taken_up(text, text) is
    'Operation of a root and those that it took up, each with its number of segments and that of the segments before it.';
