-- Tokens carry times as integer microseconds since the epoch (R1).
create function pgfence._from_microseconds(p_microseconds bigint)
returns timestamptz
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select timestamptz '1970-01-01 00:00:00+00' + p_microseconds * interval '1 microsecond'
$$;
-- next statement
revoke all on function pgfence._from_microseconds(bigint) from public;
-- next statement
comment on function pgfence._from_microseconds(bigint) is 'Microseconds since the epoch as a timestamp (R1).';
