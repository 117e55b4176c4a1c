-- Writes the line of protection_changes for a change of protected_tables.
create function pgfence._record_protection()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op <> 'INSERT' then
        insert into pgfence.protection_changes (change, protected_table, table_oid, template)
        values ('UNPROTECTED', old.protected_table::text, old.protected_table, old.template);
    end if;
    if tg_op <> 'DELETE' then
        insert into pgfence.protection_changes (change, protected_table, table_oid, template)
        values ('PROTECTED', new.protected_table::text, new.protected_table, new.template);
    end if;
    return null;
end
$$;
revoke all on function pgfence._record_protection() from public;
comment on function pgfence._record_protection() is
    'Trigger: notes in protection_changes who protected or unprotected a table (R26).';

create trigger record_protection after insert or delete or update of protected_table, template on pgfence.protected_tables
    for each row execute function pgfence._record_protection();

alter table pgfence.protected_tables enable always trigger record_protection;
