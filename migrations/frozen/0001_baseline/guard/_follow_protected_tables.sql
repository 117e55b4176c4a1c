-- However the protected tables change, what attests their guards names them.
create function pgfence._follow_protected_tables()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._write_attestation();
    return null;
end
$$;
-- next statement
revoke all on function pgfence._follow_protected_tables() from public;
-- next statement
comment on function pgfence._follow_protected_tables() is
    'Trigger: has pgfence._guards_are_whole() written for the tables that are protected now (R25).';
-- next statement
create trigger follow_protected_tables after insert or update or delete or truncate on pgfence.protected_tables
    for each statement execute function pgfence._follow_protected_tables();
-- next statement
alter table pgfence.protected_tables enable always trigger follow_protected_tables;
