-- Whether this is the database that was guarded, and not a promoted, restored or copied one (R39). A
-- trust bundle without the audience that goes with it is what a restore of data leaves that could not
-- replace the row of a fresh installation.
create function pgfence._is_recorded_database(p_configuration pgfence.configuration)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select i.system_identifier = p_configuration.system_identifier and i.timeline = p_configuration.timeline
           and i.database_oid = p_configuration.database_oid
           and (p_configuration.audience is not null or not exists (select from pgfence.trust_bundles))
      from pgfence._database_identity() as i
$$;
revoke all on function pgfence._is_recorded_database(pgfence.configuration) from public;
comment on function pgfence._is_recorded_database(pgfence.configuration) is
    'Whether system identifier, timeline and database are those on record (R39).';
