-- Refuses to change or forget a line of protection_changes, also to the owner role, and to empty
-- protected_tables without leaving any.
create function pgfence._keep_protection_changes()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._raise('CLOSED_TABLE', format('%s on %I.%I: who protects what is never forgotten', tg_op, tg_table_schema, tg_table_name),
        'The owner of a table takes its guard off with pgfence.unprotect.', 'R26',
        jsonb_build_object('table', tg_table_schema || '.' || tg_table_name, 'role', current_user));
    return null;
end
$$;
revoke all on function pgfence._keep_protection_changes() from public;
comment on function pgfence._keep_protection_changes() is
    'Trigger: raises PF204, lines of protection_changes are only added (R26).';

create trigger keep_changes before update or delete or truncate on pgfence.protection_changes
    for each statement execute function pgfence._keep_protection_changes();
create trigger keep_protections before truncate on pgfence.protected_tables
    for each statement execute function pgfence._keep_protection_changes();

alter table pgfence.protection_changes enable always trigger keep_changes;
alter table pgfence.protected_tables enable always trigger keep_protections;
