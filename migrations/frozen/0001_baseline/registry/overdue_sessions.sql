-- Sessions that keep others from a resource without a right to it (R20): their open transaction holds
--  * the fence row that somebody waits for, while the lease of their workload is over or another
--    workload holds the resource, or while they act for none any more. Who waits has the lock of the
--    tuple, and waits for the transaction of the one who holds it. Never one of a role that takes fence
--    rows without being a workload: a member of pgfence_owner (a superuser is one), a registry process;
--  * the configuration of a database that was promoted or restored, by the first request there: all others
--    wait for it, whatever they ask for, and resource is null;
--  * the row of a lease that is over, by renewing it, while somebody waits for the resource, or for the row
--    (resume, use_registry_elsewhere);
--  * a new resource, by asking for it, while somebody else waits for it.
-- The registry process ends one that it sees in two looks. A waiter that is blocked cannot say that
-- it is alive, so it counts for a minute. pid is null for a prepared transaction, which only a person
-- can end: commit prepared, rollback prepared.
create function pgfence_registry.overdue_sessions()
returns table (pid integer, transaction text, resource text, overdue_ms bigint)
language sql volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
    with waited as (
        select w.resource, f.resource is null as is_new, g.lease, coalesce(g.ended_at, g.lease_ends_at) as ended_at
          from (select distinct r.resource from pgfence_registry.requests as r
                 where r.state = 'WAITING'
                   and r.alive_until > pg_catalog.clock_timestamp() - interval '1 minute') as w
          left join pgfence.fences as f on f.resource = w.resource
          left join pgfence_registry.grants as g on g.lease = f.current_lease
         where g.lease is null or g.lease_ends_at <= pg_catalog.clock_timestamp()
    ), marked as (
        select l.pid, l.virtualtransaction, w.resource, w.ended_at
          from waited as w
          join pg_catalog.pg_locks as l
            on l.locktype = 'advisory' and l.granted and l.objsubid = 2
           and l.classid::bigint = pgfence_registry._mark(case when w.is_new then w.resource else w.lease end)::bigint & 4294967295
          join pg_catalog.pg_database as d on d.oid = l.database and d.datname = pg_catalog.current_database()
         -- a client may take marks, but without a row to go with them it holds up nobody
         where exists (select from pg_catalog.pg_locks as t
                        where t.database = l.database and t.virtualtransaction = l.virtualtransaction
                          and t.mode = 'RowExclusiveLock' and t.relation = case
                                  when w.is_new then 'pgfence.fences' else 'pgfence_registry.grants' end::regclass)
    ), holders as (
        select h.relation, h.at, h.holder as pid, h.transaction, w.workloads
          from pgfence._held_rows as h
          left join pg_catalog.pg_stat_activity as a on a.pid = h.holder
          -- several where only SYSTEM_USER, which is not shown for others, tells them apart
         cross join lateral (select array_agg(l.workload) as workloads from pgfence.workload_logins as l
                              where l.role = a.usesysid) as w
         where h.holder is null or w.workloads is not null
            or not (pg_catalog.pg_has_role(a.usesysid, 'pgfence_owner', 'MEMBER')
                    or pg_catalog.pg_has_role(a.usesysid, 'pgfence_registry', 'MEMBER'))
    ), held as (
        select h.pid, h.transaction, f.resource, coalesce(g.ended_at, g.lease_ends_at) as ended_at
          from holders as h
          left join pgfence.fences as f on h.relation = 'pgfence.fences'::regclass and f.ctid = h.at
          left join pgfence_registry.grants as g on g.lease = f.current_lease
         where (f.resource is not null or h.relation = 'pgfence.configuration'::regclass
                and not (select pgfence._is_recorded_database(c) from pgfence.configuration as c))
           and (g.lease is null or g.lease_ends_at <= pg_catalog.clock_timestamp()
                or g.owner <> all (coalesce(h.workloads, '{}')))
         union
        select h.pid, h.transaction, g.resource, g.lease_ends_at
          from holders as h
          join pgfence_registry.grants as g on h.relation = 'pgfence_registry.grants'::regclass and g.ctid = h.at
         where g.lease_ends_at <= pg_catalog.clock_timestamp()
    )
    select o.pid, o.virtualtransaction, o.resource,
           greatest(0, coalesce(pg_catalog.floor(extract(epoch from pg_catalog.clock_timestamp() - o.ended_at) * 1000), 0))::bigint
      from (select * from marked union select * from held) as o
     where o.pid is distinct from pg_catalog.pg_backend_pid()
       -- a registry elsewhere knows who has a right to it, and this one does not
       and (select c.registry_is_local from pgfence.configuration as c)
       and pgfence._shadow_prefix(coalesce(o.resource, '')) is null  -- R28
$$;
-- next statement
revoke all on function pgfence_registry.overdue_sessions() from public;
-- next statement
grant execute on function pgfence_registry.overdue_sessions() to pgfence_registry;
-- next statement
comment on function pgfence_registry.overdue_sessions() is
    'Sessions whose open transaction keeps others from a resource (null: from every one) without a right to it (R20); `transaction` tells one look''s from the next one''s.';
