-- Which database of which running server this is. The same as long as a session lasts, hence IMMUTABLE,
-- and PostgreSQL looks only once for each plan. While a server runs, its system identifier and its
-- timeline stay what they are: a promoted standby was started at another time than its primary.
create function pgfence._this_server()
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select concat_ws(' ', d.oid, extract(epoch from pg_postmaster_start_time()))
              from pg_catalog.pg_database as d where d.datname = current_database());
end
$$;
-- next statement
revoke all on function pgfence._this_server() from public;
-- next statement
comment on function pgfence._this_server() is 'Database OID and start of the server, for this session (R7, R39).';
