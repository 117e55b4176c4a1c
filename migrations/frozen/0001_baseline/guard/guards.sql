-- How each protected table, and each partition below it, is guarded now. Admission, protect and
-- doctor all read the state of the guard here. A partition that was attached after protect has the
-- row trigger alone, cloned and firing always: enough for rows, but PostgreSQL cannot guard it
-- against TRUNCATE, so nobody but its owner may hold that right. On a table without partitions the
-- statement triggers see every row but those of logical apply, so its row trigger need only fire there.
-- On partitions it fires always: a row that MERGE moves to another partition is shown to no statement
-- trigger of an UPDATE.
create view pgfence.guards as
select p.protected_table,
       p.template,
       p.literal_prefix,
       c.oid::regclass as relation,
       c.relkind = 'p' as is_partitioned,
       t.statement_guards,
       t.truncate_guard,
       t.row_guard,
       case
           when c.relkind not in ('r', 'p') then 'is not an ordinary or partitioned table'
           when c.relpersistence <> 'p' then 'is not permanent: it is temporary or unlogged'
           when c.oid = p.protected_table and (c.relispartition or h.is_child) then 'is a partition or child of another table'
           when c.relkind = 'r' and c.relhassubclass and h.is_parent then 'has child tables, which are written without its triggers'
           when c.relhasrules
               and exists (select from pg_catalog.pg_rewrite as r where r.ev_class = c.oid and r.ev_type <> '1')
               then 'has a rule that rewrites writes'
           when c.oid = p.protected_table and k.lost is not null
               then pg_catalog.format('has no stored column "%s", which names the resource', k.lost)
       end as unprotectable,
       case
           when f.prosrc is distinct from p.guard_source
               or pg_catalog.pg_get_userbyid(f.proowner) <> 'pgfence_owner' or not f.prosecdef
               or f.proconfig is distinct from array['search_path=pg_catalog, pg_temp']
               then 'the guard function is missing or was changed'
           when c.oid = p.protected_table and k.changed is not null
               then pg_catalog.format('column "%s", which names the resource, has changed its type since protect', k.changed)
           when c.oid = p.protected_table and not (t.statement_guards and t.truncate_guard)
               or t.row_guard not in ('always', 'replica')
               or t.row_guard = 'replica' and (c.oid <> p.protected_table or c.relkind = 'p')
               then 'a trigger of the guard is missing, disabled, not ENABLE ALWAYS, or was changed'
           when exists (
               select from pg_catalog.aclexplode(c.relacl) as a
               where a.privilege_type = 'TRIGGER' and a.grantee <> c.relowner
           )
               then 'others than its owner may create triggers on it, and so replace those of the guard'
           when not t.truncate_guard
               and exists (
                   select from pg_catalog.aclexplode(c.relacl) as a
                   where a.privilege_type = 'TRUNCATE' and a.grantee <> c.relowner
               )
               then 'it was attached after protect, and others than its owner may TRUNCATE it'
       end as missing
from pgfence.protected_tables as p
cross join lateral (select c.oid, c.relkind from pg_catalog.pg_class as c where c.oid = p.protected_table limit 1) as top
left join lateral (
    select f.oid, f.prosrc, f.proowner, f.prosecdef, f.proconfig from pg_catalog.pg_proc as f
    where f.proname = '_guard_' || p.guard_id and f.pronamespace = 'pgfence'::regnamespace and f.pronargs = 0
    limit 1
) as f on true
cross join lateral (
    -- columns of the template; the guard function looks at their types as pgfence._guard_source wrote it,
    -- with quotes or without, as quote_all_identifiers was then
    select min(n.name) filter (where a.attnum is null or a.attgenerated = 'v') as lost,
           min(n.name) filter (where a.attnum is not null and pg_catalog.strpos(pg_catalog.replace(p.guard_source, '"', ''),
               pg_catalog.concat('pg_typeof(v_row.', pg_catalog.replace(a.attname::text, '"', ''), ')::oid <> ', a.atttypid)) = 0) as changed
    from (select x.match[1] as name from pg_catalog.regexp_matches(p.template, '[{]([^}]+)[}]', 'g') as x (match)) as n
    left join pg_catalog.pg_attribute as a on a.attrelid = top.oid and a.attname = n.name and a.attnum > 0 and not a.attisdropped
) as k
cross join lateral (
    select top.oid as relid
    union all
    (
        with recursive below as (
            select i.inhrelid from pg_catalog.pg_inherits as i where i.inhparent = top.oid and top.relkind = 'p'
            union all
            select i.inhrelid from below as b join pg_catalog.pg_inherits as i on i.inhparent = b.inhrelid
        )
        select b.inhrelid from below as b
    )
) as m
join pg_catalog.pg_class as c on c.oid = m.relid
cross join lateral (
    select exists (select from pg_catalog.pg_inherits as i where i.inhrelid = c.oid) as is_child,
           exists (select from pg_catalog.pg_inherits as i where i.inhparent = c.oid) as is_parent
) as h
cross join lateral (
    -- tgtype: 4 after insert, 8 after delete, 16 after update, 34 before truncate; 29 for each row, after all three
    select count(distinct t.tgtype) filter (where t.tgtype in (4, 8, 16) and t.tgenabled = 'A') = 3 as statement_guards,
           count(*) filter (where t.tgtype = 34 and t.tgenabled = 'A') > 0 as truncate_guard,
           case max(t.tgenabled::text) filter (where t.tgtype = 29 and t.tgenabled in ('A', 'R'))
               when 'A' then 'always' when 'R' then 'replica' else 'none' end as row_guard
    from pg_catalog.pg_trigger as t
    where t.tgrelid = c.oid and t.tgfoid = f.oid and t.tgqual is null and t.tgattr[0] is null
) as t;
-- next statement
comment on view pgfence.guards is
    'The guard of each protected table and of each partition below it. unprotectable, missing: null when all is well (R25).';
-- next statement
comment on column pgfence.guards.relation is 'The protected table itself or a partition of it, at any depth.';
-- next statement
comment on column pgfence.guards.row_guard is 'When the row trigger fires: always, replica (in logical apply only), none.';
-- next statement
comment on column pgfence.guards.unprotectable is 'Why no guard holds on this relation.';
-- next statement
comment on column pgfence.guards.missing is 'What protect, run again, puts right.';
-- next statement
grant select on pgfence.guards to pgfence_app, pgfence_auditor;
