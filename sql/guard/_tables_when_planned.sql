-- Whether the protected tables are these and no others, as one plan remembers it: see
-- pgfence.attestation_source.
create function pgfence._tables_when_planned(p_protected_tables regclass, p_tables oid[])
returns boolean
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgfence._protected_oids() = p_tables;
end
$$;
revoke all on function pgfence._tables_when_planned(regclass, oid[]) from public;
comment on function pgfence._tables_when_planned(regclass, oid[]) is
    'Whether the protected tables were these when the plan was made (R25).';
