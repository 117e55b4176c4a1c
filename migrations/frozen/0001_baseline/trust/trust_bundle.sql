-- The bundle that counts now: the one with the highest version. No row before the first is installed.
create function pgfence.trust_bundle()
returns table (version bigint, document text, digest text)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select b.version, b.document, b.digest
    from pgfence.trust_bundles b order by b.version desc limit 1
$$;
-- next statement
revoke all on function pgfence.trust_bundle() from public;
-- next statement
grant execute on function pgfence.trust_bundle() to pgfence_app, pgfence_registry, pgfence_auditor;
-- next statement
comment on function pgfence.trust_bundle() is
    'The current trust bundle: version, document, and SHA-256 of the document in hexadecimal. No row if there is none.';
