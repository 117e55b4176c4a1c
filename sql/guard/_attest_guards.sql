-- Part of every admission: no table that may hold rows of the resource has lost its guard (R25).
-- Two quick looks tell that all is well beyond doubt: at the tables themselves, and at all their
-- partitions in one pass over the triggers. Where they cannot tell, pgfence.guards does. LIMIT 1
-- keeps the planner to the index: a table as small as protected_tables is never analyzed.
-- (t.tgtype: 4 after insert, 8 after delete, 16 after update, 34 before truncate; 29 the row trigger)
create function pgfence._attest_guards(p_resource text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tables_are_whole boolean;
    v_any_is_partitioned boolean;
    v_gap record;
begin
    select bool_and((c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition and not c.relhasrules
                    and (c.relkind = 'p' or not c.relhassubclass)
                    and not exists (
                        select from aclexplode(c.relacl) as a where a.privilege_type = 'TRIGGER' and a.grantee <> c.relowner)
                    and (select true from pg_inherits as i where i.inhrelid = p.protected_table limit 1) is null
                    and not exists (
                        select from regexp_matches(p.template, '[{]([^}]+)[}]', 'g') as x (match)
                        left join pg_attribute as a on a.attrelid = p.protected_table and a.attname = x.match[1] and not a.attisdropped
                        where (a.attgenerated <> 'v' and strpos(replace(p.guard_source, '"', ''),
                            concat('pg_typeof(v_row.', replace(a.attname::text, '"', ''), ')::oid <> ', a.atttypid)) > 0) is not true)
                    and f.prosrc = p.guard_source and f.prosecdef and pg_get_userbyid(f.proowner) = 'pgfence_owner'
                    and f.proconfig = array['search_path=pg_catalog, pg_temp']
                    and (
                        select bit_or(t.tgtype) filter (where t.tgtype <> 29 and t.tgenabled = 'A') = 62
                           and bool_or(t.tgtype = 29 and (t.tgenabled = 'A' or t.tgenabled = 'R' and c.relkind = 'r'))
                        from pg_trigger as t
                        where t.tgrelid = p.protected_table and t.tgfoid = f.oid and t.tgqual is null and t.tgattr[0] is null
                    )) is true),
           bool_or(c.relkind = 'p')
    into v_tables_are_whole, v_any_is_partitioned
    from pgfence.protected_tables as p
    cross join lateral (
        select c.relkind, c.relpersistence, c.relispartition, c.relhasrules, c.relhassubclass, c.relacl, c.relowner
        from pg_class as c where c.oid = p.protected_table limit 1
    ) as c
    left join lateral (
        select f.oid, f.prosrc, f.prosecdef, f.proowner, f.proconfig from pg_proc as f
        where f.proname = '_guard_' || p.guard_id and f.pronamespace = 'pgfence'::regnamespace and f.pronargs = 0
        limit 1
    ) as f on true
    where starts_with(p_resource, p.literal_prefix);

    if v_tables_are_whole and not v_any_is_partitioned or v_any_is_partitioned is null then
        return;
    elsif v_tables_are_whole and not exists (
        select from (
            select t.tgrelid,
                   bit_or(t.tgtype) filter (where t.tgtype <> 29 and t.tgenabled = 'A') as statement_types,
                   max(ascii(t.tgenabled::text)) filter (where t.tgtype = 29) as row_enabled
            from pg_trigger as t
            where t.tgfoid = any(array(
                    select (select f.oid from pg_proc as f
                            where f.proname = '_guard_' || p.guard_id and f.pronamespace = 'pgfence'::regnamespace
                              and f.pronargs = 0)
                    from pgfence.protected_tables as p
                    where starts_with(p_resource, p.literal_prefix)
                ))
              and t.tgqual is null and t.tgattr[0] is null
            group by t.tgrelid
        ) as t
        join pg_class as c on c.oid = t.tgrelid
        -- a partition has the row trigger as long as it is one; one attached later has nothing else
        where t.row_enabled is not null
          and (c.relpersistence = 'p' and not c.relhasrules
               and c.relkind in ('r', 'p')
               and (t.row_enabled = ascii('A') or t.row_enabled = ascii('R') and t.statement_types = 62 and not c.relispartition)
               and not exists (
                   select from aclexplode(c.relacl) as a
                   where a.grantee <> c.relowner
                     and (a.privilege_type = 'TRIGGER'
                          or a.privilege_type = 'TRUNCATE' and t.statement_types is distinct from 62))) is not true
    ) then
        return;
    end if;

    select g.protected_table, g.template, g.relation, g.unprotectable, g.missing
    into v_gap
    from pgfence.guards as g
    where starts_with(p_resource, g.literal_prefix) and (g.unprotectable is not null or g.missing is not null)
    limit 1;
    if found then
        perform pgfence._raise('GUARD_MISSING',
            format('the guard of %s is not whole: %s: %s', v_gap.protected_table, v_gap.relation,
                coalesce(v_gap.unprotectable, v_gap.missing)),
            format(case when v_gap.unprotectable is null then 'Run as the owner: %s' else 'Change that, then run as the owner: %s' end,
                format('select pgfence.protect(%L, %L);', v_gap.protected_table, v_gap.template)),
            'R25',
            jsonb_build_object('table', v_gap.protected_table::text, 'relation', v_gap.relation::text, 'resource', p_resource));
    end if;
end
$$;
revoke all on function pgfence._attest_guards(text) from public;
comment on function pgfence._attest_guards(text) is
    'Raises PF202 where a table that may hold rows of the resource is not guarded as protect left it (R25).';
