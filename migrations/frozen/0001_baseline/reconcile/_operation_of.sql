-- Whose operation a root names, and under which fence: as it was accepted, else as it was granted, else as
-- its worker reported it, the latest. What was granted here says nothing once the registry is elsewhere: the
-- other one may have granted the same root again. A row of nulls if this database has never heard of it.
create function pgfence._operation_of(
    p_resource text, p_operation_root text,
    out fence_token bigint, out owner text, out lease text, out granted_at timestamptz, out pruned_segments bigint
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    select o.fence_token, o.owner, o.lease, pgfence._from_microseconds(o.issued_at), o.pruned_segments
      into fence_token, owner, lease, granted_at, pruned_segments
      from pgfence.operations as o
     where o.resource = p_resource and o.operation_root = p_operation_root;
    if found then
        return;
    end if;
    select g.fence_token, g.owner, g.lease, g.granted_at
      into fence_token, owner, lease, granted_at
      from pgfence_registry.requests as r join pgfence_registry.grants as g on g.lease = r.lease
     where r.resource = p_resource and r.operation_root = p_operation_root
       and (select c.registry_is_local from pgfence.configuration as c);
    if found then
        return;
    end if;
    select u.fence_token, u.workload into fence_token, owner
      from pgfence.unknown_mutations as u
     where u.resource = p_resource and u.operation_root = p_operation_root
     order by u.fence_token desc
     limit 1;
end
$$;
-- next statement
revoke all on function pgfence._operation_of(text, text) from public;
-- next statement
comment on function pgfence._operation_of(text, text) is
    'Fence, owner and lease of an operation root, or nulls (R45).';
