-- Every change of protected_tables leaves a line in the journal, whoever makes it and however.
create function pgfence._record_protection()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op <> 'INSERT' then
        insert into pgfence.journal (action, reason, detail) values ('UNPROTECTED', '', jsonb_build_object(
            'table', old.protected_table::text, 'oid', old.protected_table::oid::bigint, 'template', old.template));
    end if;
    if tg_op <> 'DELETE' then
        insert into pgfence.journal (action, reason, detail) values ('PROTECTED', '', jsonb_build_object(
            'table', new.protected_table::text, 'oid', new.protected_table::oid::bigint, 'template', new.template));
    end if;
    return null;
end
$$;
revoke all on function pgfence._record_protection() from public;
comment on function pgfence._record_protection() is
    'Trigger: notes in the journal who protected or unprotected a table (R26).';

create trigger record_protection after insert or delete or update of protected_table, template on pgfence.protected_tables
    for each row execute function pgfence._record_protection();
create trigger keep_protections before truncate on pgfence.protected_tables
    for each statement execute function pgfence._keep_journal();

alter table pgfence.protected_tables enable always trigger record_protection;
alter table pgfence.protected_tables enable always trigger keep_protections;
