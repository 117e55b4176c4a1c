-- From here on the rows of the table are written only by an owner that was admitted for their
-- resource in the same transaction. Runs with the rights of the table's owner, who calls it. Called
-- again with the same template it mends the guard, and gives partitions attached since all of it.
create function pgfence.protect(p_table regclass, p_template text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_guard text;
    v_relation record;
begin
    if exists (select from pg_class as c where c.oid = p_table and c.relkind in ('r', 'p')) then
        execute format('lock table only %s in share row exclusive mode', p_table);
    end if;
    v_guard := pgfence.prepare_protection(p_table, p_template);

    if exists (
        select from pgfence.guards as g
        where g.relation = p_table and g.row_guard <> case when g.is_partitioned then 'always' else 'replica' end
    ) then
        if exists (select from pg_trigger as t where t.tgrelid = p_table and t.tgname = 'pgfence_guard_row') then
            execute format('drop trigger pgfence_guard_row on %s', p_table);
        end if;
        execute format('create trigger pgfence_guard_row after insert or update or delete on %s '
                       'for each row execute function %s()', p_table, v_guard);
        execute format('alter table %s enable always trigger pgfence_guard_row', p_table);
    end if;
    for v_relation in
        select g.relation as name, g.row_guard, w.row_guard as wanted_row_guard
        from pgfence.guards as g
        cross join lateral (
            select case when g.relation = p_table and not g.is_partitioned then 'replica' else 'always' end
        ) as w (row_guard)
        where g.protected_table = p_table and not (g.statement_guards and g.truncate_guard and g.row_guard = w.row_guard)
    loop
        execute format('create or replace trigger pgfence_guard_insert after insert on %s '
                       'referencing new table as pgfence_new_rows for each statement execute function %s()',
            v_relation.name, v_guard);
        execute format('create or replace trigger pgfence_guard_update after update on %s '
                       'referencing old table as pgfence_old_rows new table as pgfence_new_rows '
                       'for each statement execute function %s()', v_relation.name, v_guard);
        execute format('create or replace trigger pgfence_guard_delete after delete on %s '
                       'referencing old table as pgfence_old_rows for each statement execute function %s()',
            v_relation.name, v_guard);
        execute format('create or replace trigger pgfence_guard_truncate before truncate on %s '
                       'for each statement execute function %s()', v_relation.name, v_guard);
        execute format('alter table only %s enable always trigger pgfence_guard_insert, '
                       'enable always trigger pgfence_guard_update, enable always trigger pgfence_guard_delete, '
                       'enable always trigger pgfence_guard_truncate', v_relation.name);
        if v_relation.row_guard <> v_relation.wanted_row_guard then
            execute format('alter table %s enable %s trigger pgfence_guard_row', v_relation.name, v_relation.wanted_row_guard);
        end if;
    end loop;
    -- GRANT ALL includes the right to create triggers, and with it to replace those of the guard.
    for v_relation in
        select distinct c.oid::regclass as name, case when a.grantee = 0 then 'public' else quote_ident(r.rolname) end as grantee
        from pgfence.guards as g join pg_class as c on c.oid = g.relation
        cross join lateral aclexplode(c.relacl) as a left join pg_roles as r on r.oid = a.grantee
        where g.protected_table = p_table and a.privilege_type = 'TRIGGER' and a.grantee <> c.relowner
    loop
        execute format('revoke trigger on %s from %s cascade', v_relation.name, v_relation.grantee);
        raise notice 'protect takes the right TRIGGER on % from %: it could replace the guard',
            v_relation.name, v_relation.grantee;
    end loop;
    if exists (select from pgfence.guards as g where g.protected_table = p_table and g.missing is not null) then
        raise exception '% could not be guarded', p_table
            using errcode = 'PF304', constraint = 'R25', detail = '{"error": "UNPROTECTABLE"}',
                  hint = 'See pgfence.guards. Triggers of the name pgfence_guard_... on it or its partitions are in the way.';
    end if;
end
$$;
-- next statement
revoke all on function pgfence.protect(regclass, text) from public;
-- next statement
grant execute on function pgfence.protect(regclass, text) to pgfence_app;
-- next statement
comment on function pgfence.protect(regclass, text) is
    'Guards a table (R23, R25). Raises PF301 without table or template, PF304 where the table or template cannot be protected.';
