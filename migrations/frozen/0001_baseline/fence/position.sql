-- Where a resource stands: what a successor asks before it goes on. An operation that takes up
-- earlier ones (continues_root) counts their segments too.
create function pgfence.position(p_resource text)
returns table (
    highest_fence bigint, operation_root text, last_segment bigint, owner text, continues_root text, paused boolean,
    total_segments bigint, written_root text
)
language sql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select f.highest_fence, o.operation_root, f.last_segment, o.owner, o.continues_root, f.paused_because is not null,
           (select coalesce(sum(t.segments), 0)::bigint from pgfence._taken_up(f.resource, o.operation_root) as t),
           (select w.operation_root from pgfence.operations as w
             where w.resource = f.resource
               and (w.pruned_segments > 0
                    or exists (select from pgfence.receipts as r where r.resource = w.resource and r.fence_token = w.fence_token))
             order by w.fence_token desc limit 1)
      from pgfence.fences as f
      left join pgfence.operations as o on o.resource = f.resource and o.fence_token = f.highest_fence
     where f.resource = p_resource
$$;
-- next statement
revoke all on function pgfence.position(text) from public;
-- next statement
grant execute on function pgfence.position(text) to pgfence_app, pgfence_auditor;
-- next statement
comment on function pgfence.position(text) is
    'Highest fence of a resource, its root and owner, and the last accepted segment; total_segments counts those of the operations that it took up as well; written_root: of the last segment there is, also when a later owner has raised the fence. No row if nothing was ever asked for.';
