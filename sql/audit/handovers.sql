-- How long resources took to change hands: from the end of a lease that somebody waited for, to the moment
-- at which the next owner's fence was raised by its first segment or advance(). Only those that were
-- completed after p_since. Reads only.
create function pgfence.handovers(p_since timestamptz)
returns table (
    resource text, fence_token bigint, owner text, previous_owner text, free_at timestamptz, written_at timestamptz,
    handover_ms bigint
)
language sql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select o.resource, o.fence_token, o.owner, p.owner, p.free_at, o.first_accepted_at,
           pg_catalog.ceil(extract(epoch from o.first_accepted_at - p.free_at) * 1000)::bigint
      from pgfence.operations as o
      join pgfence_registry.requests as r on r.workload = o.owner and r.request_id = o.request_id
     cross join lateral (
          select g.owner, least(g.ended_at, g.lease_ends_at) as free_at
            from pgfence_registry.grants as g
           where g.resource = o.resource and g.fence_token < o.fence_token
           order by g.fence_token desc limit 1) as p
     where o.first_accepted_at > p_since and r.asked_at < p.free_at
     order by o.first_accepted_at
$$;
revoke all on function pgfence.handovers(timestamptz) from public;
grant execute on function pgfence.handovers(timestamptz) to pgfence_registry, pgfence_auditor;
comment on function pgfence.handovers(timestamptz) is
    'Changes of owner that somebody waited for, and how long each took, since a time.';

-- The latest operations are at the end of the table.
create index operations_first_accepted on pgfence.operations using brin (first_accepted_at);
