-- The other way round, for what this database signs or digests.
create function pgfence._to_microseconds(p_time timestamptz)
returns bigint
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select pg_catalog.trunc(extract(epoch from p_time) * 1000000)::bigint
$$;
-- next statement
revoke all on function pgfence._to_microseconds(timestamptz) from public;
-- next statement
comment on function pgfence._to_microseconds(timestamptz) is 'A timestamp as microseconds since the epoch (R1).';
