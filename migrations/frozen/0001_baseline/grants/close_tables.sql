-- Closes every table to writes and row locks by anyone but pgfence_owner, also by
-- pg_write_all_data (R27). Row security without a policy for writing refuses row locks and hides
-- nothing from readers; the statement triggers refuse writes with an error of their own, instead
-- of quietly touching no row.
create function pgfence._refuse_direct_write()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._raise('CLOSED_TABLE',
        pg_catalog.format('%s on %I.%I: only pgfence itself writes its tables', tg_op, tg_table_schema, tg_table_name),
        'Use the functions of schemas pgfence and pgfence_registry.', 'R27',
        pg_catalog.jsonb_build_object('table', tg_table_schema || '.' || tg_table_name, 'role', current_user));
    return null;
end
$$;
-- next statement
revoke all on function pgfence._refuse_direct_write() from public;
-- next statement
comment on function pgfence._refuse_direct_write() is
    'Trigger: raises PF204 when anyone but pgfence_owner writes a table of pgfence (R27).';
-- next statement
do $$
declare
    v_table regclass;
begin
    for v_table in
        select c.oid::pg_catalog.regclass
          from pg_catalog.pg_class as c
         where c.relkind = 'r' and c.relnamespace in ('pgfence'::pg_catalog.regnamespace, 'pgfence_registry'::pg_catalog.regnamespace)
         order by c.oid::pg_catalog.regclass::text
    loop
        execute pg_catalog.format('alter table %s enable row level security', v_table);
        execute pg_catalog.format('create policy readable on %s for select using (true)', v_table);
        execute pg_catalog.format(
            'create trigger closed before insert or update or delete or truncate on %s for each statement '
            'when (current_user <> ''pgfence_owner''::text) execute function pgfence._refuse_direct_write()', v_table);
        execute pg_catalog.format('alter table %s enable always trigger closed', v_table);
    end loop;
end
$$;
