-- The bundles from a version on, in order, each with the signatures that let it in: so a client that
-- trusts that version can follow to the one in force (R33). No row if the version is above that.
create function pgfence.trust_chain(p_version bigint)
returns table (version bigint, document text, signatures text[])
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select b.version, b.document, b.signatures
    from pgfence.trust_bundles b where b.version >= p_version order by b.version
$$;

revoke all on function pgfence.trust_chain(bigint) from public;
grant execute on function pgfence.trust_chain(bigint) to pgfence_app, pgfence_registry, pgfence_auditor;

comment on function pgfence.trust_chain(bigint) is
    'Trust bundles from a version on, with their signatures, in order of version (R33).';
