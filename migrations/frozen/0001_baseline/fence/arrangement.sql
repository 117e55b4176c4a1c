-- What a client must know before it asks for anything: where the registry is, and what proofs are worth.
create function pgfence.arrangement()
returns table (audience text, registry_is_local boolean, clock_tolerance_ms bigint)
language sql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select c.audience, c.registry_is_local, c.clock_tolerance_ms from pgfence.configuration as c
$$;
-- next statement
revoke all on function pgfence.arrangement() from public;
-- next statement
grant execute on function pgfence.arrangement() to pgfence_app, pgfence_registry, pgfence_auditor;
-- next statement
comment on function pgfence.arrangement() is
    'Name of this database in grants, whether its registry is here, and by how many milliseconds the clock of one elsewhere may differ (R13).';
