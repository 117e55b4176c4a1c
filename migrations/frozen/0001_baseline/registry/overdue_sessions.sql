-- Sessions that keep a waiter from a resource although the lease before it has ended: they hold the
-- fence row or the grant row in an open transaction that can no longer commit a segment. The
-- registry process ends one that it sees in two looks. Whose transaction it is, is read from the
-- rows' xmax: what an open transaction wrote cannot be seen. A waiter that is blocked by it cannot
-- say that it is alive, so it counts for a minute.
create function pgfence_registry.overdue_sessions()
returns table (pid integer, transaction text, resource text, overdue_ms bigint)
language sql volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
    with waited as (
        select f.resource, f.xmax as fence_locker, g.xmax as grant_locker,
               coalesce(g.ended_at, g.lease_ends_at) as ended_at
          from (select distinct r.resource from pgfence_registry.requests as r
                 where r.state = 'WAITING'
                   and r.alive_until > pg_catalog.clock_timestamp() - interval '1 minute') as w
          join pgfence.fences as f on f.resource = w.resource
          left join pgfence_registry.grants as g on g.lease = f.current_lease
         where g.lease is null or g.lease_ends_at <= pg_catalog.clock_timestamp()
    )
    select distinct h.pid, h.transactionid::text, w.resource,
           coalesce(pg_catalog.floor(extract(epoch from pg_catalog.clock_timestamp() - w.ended_at) * 1000)::bigint, 0)
      from waited as w
      join pg_catalog.pg_locks as h
        on h.locktype = 'transactionid' and h.granted and h.transactionid in (w.fence_locker, w.grant_locker)
     where h.pid <> pg_catalog.pg_backend_pid()
       and not exists (select from pg_catalog.pg_locks as b where b.pid = h.pid and not b.granted)
$$;
-- next statement
revoke all on function pgfence_registry.overdue_sessions() from public;
-- next statement
grant execute on function pgfence_registry.overdue_sessions() to pgfence_registry;
-- next statement
comment on function pgfence_registry.overdue_sessions() is
    'Sessions whose open transaction holds up a waiter after the lease has ended (R20); `transaction` tells one look''s from the next one''s.';
