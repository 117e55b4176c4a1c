-- Writes pgfence._guards_are_whole() for the tables that are protected now.
create function pgfence._write_attestation()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
begin
    -- One at a time: two writers of one function would fail.
    lock table pgfence.protected_tables in share update exclusive mode;
    execute format('create or replace function pgfence._guards_are_whole(p_resource text) returns boolean '
                   'language plpgsql set search_path = pg_catalog, pg_temp as %L', pgfence.attestation_source());
end
$$;
revoke all on function pgfence._write_attestation() from public;
comment on function pgfence._write_attestation() is
    'Writes pgfence._guards_are_whole() for the tables that are protected now (R25).';

select pgfence._write_attestation();
