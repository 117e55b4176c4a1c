-- Says which database this is: a promoted standby has another timeline, a restored dump another
-- system identifier or database (R39). The timeline is read from the WAL position, because the
-- control file may still show the old one for a while after a promotion. A standby has none: it takes
-- no writes, and says so itself (25006).
create function pgfence._database_identity(
    out system_identifier bigint, out timeline text, out database_oid oid
)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select c.system_identifier,
           case when not pg_catalog.pg_is_in_recovery()
                then substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) end,
           d.oid
      from pg_catalog.pg_control_system() as c, pg_catalog.pg_database as d
     where d.datname = pg_catalog.current_database()
$$;
-- next statement
revoke all on function pgfence._database_identity() from public;
-- next statement
comment on function pgfence._database_identity() is
    'System identifier, WAL timeline and OID of this database; no timeline on a standby (R39).';
-- next statement
insert into pgfence.configuration (system_identifier, timeline, database_oid)
select i.system_identifier, i.timeline, i.database_oid from pgfence._database_identity() as i;
