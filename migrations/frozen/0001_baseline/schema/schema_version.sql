-- The migration that this schema stands at. Clients compare it with the one they were built for.
create function pgfence.schema_version() returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$ select '0001_baseline' $$;
-- next statement
revoke all on function pgfence.schema_version() from public;
-- next statement
grant execute on function pgfence.schema_version() to pgfence_app, pgfence_registry, pgfence_auditor;
-- next statement
comment on function pgfence.schema_version() is 'The migration that this schema stands at. Raises nothing.';
