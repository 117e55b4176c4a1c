-- Lets the server end a session that outlives its admission (R20): idle in the transaction, and on
-- 17 and later busy too. A shorter time-out of the client's own stays. A courtesy: the client may
-- unset both; what enforces the end is the look at COMMIT. Returns what is left, in milliseconds.
create function pgfence._limit_transaction(p_until timestamptz)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_left_ms constant bigint := greatest(1, least(2147483647,
        pg_catalog.date_part('epoch', p_until - pg_catalog.clock_timestamp()) * 1000));
    v_left constant text := v_left_ms;
    v_set text;
begin
    v_set := pg_catalog.current_setting('idle_in_transaction_session_timeout');
    if v_set <> '0' then
        if pg_catalog.date_part('epoch', v_set::interval) * 1000 > v_left_ms then
            v_set := '0';
        end if;
    end if;
    if v_set = '0' then
        v_set := pg_catalog.set_config('idle_in_transaction_session_timeout', v_left, true);
    end if;
    v_set := pg_catalog.current_setting('transaction_timeout', true);  -- null before PostgreSQL 17
    if v_set <> '0' then
        -- A timer that runs counts from when it was set, at the earliest from the start of the transaction.
        if pg_catalog.date_part('epoch', v_set::interval
               - (pg_catalog.clock_timestamp() - pg_catalog.transaction_timestamp())) * 1000 > v_left_ms then
            -- First 0: it keeps its old end otherwise.
            v_set := pg_catalog.set_config('transaction_timeout', '0', true);
        end if;
    end if;
    if v_set = '0' then
        v_set := pg_catalog.set_config('transaction_timeout', v_left, true);
    end if;
    return v_left_ms;
end
$$;
-- next statement
revoke all on function pgfence._limit_transaction(timestamptz) from public;
-- next statement
comment on function pgfence._limit_transaction(timestamptz) is
    'Sets the session''s time-outs for this transaction to what is left of the lease (R20).';
