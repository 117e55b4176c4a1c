-- Where a resource stands: what a successor asks before it goes on.
create function pgfence.position(p_resource text)
returns table (
    highest_fence bigint, operation_root text, last_segment bigint, owner text, continues_root text, paused boolean
)
language sql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select f.highest_fence, o.operation_root, f.last_segment, o.owner, o.continues_root, f.paused_because is not null
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
    'Highest fence of a resource, its root and owner, and the last accepted segment; no row if nothing was ever asked for.';
