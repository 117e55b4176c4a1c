-- Until when receipts must be older to be pruned. Whoever does not know what became of a segment asks for
-- its receipt within minutes (R45): an hour is the least.
create function pgfence._retention_ends(p_retention interval)
returns timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if (p_retention >= interval '1 hour') is not true then
        perform pgfence._raise('INVALID_ARGUMENT',
            coalesce('a retention of ' || p_retention || ' is too short', 'the retention is NULL'),
            'Keep receipts for an hour at least: interval ''90 days''.', 'R22');
    end if;
    return pg_catalog.clock_timestamp() - p_retention;
end
$$;
-- next statement
revoke all on function pgfence._retention_ends(interval) from public;
-- next statement
comment on function pgfence._retention_ends(interval) is
    'The time before which receipts are older than the retention. Raises PF301 below an hour (R22, R45).';
