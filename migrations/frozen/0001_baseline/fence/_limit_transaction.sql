-- Lets the server end a session that outlives its admission (R20): idle in the transaction, and on
-- 17 and later busy too. A shorter time-out of the client's own stays. A courtesy: the client may
-- unset both; what enforces the end is the look at COMMIT.
create function pgfence._limit_transaction(p_until timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_left_ms bigint := greatest(1, least(2147483647,
        pg_catalog.floor(extract(epoch from p_until - pg_catalog.clock_timestamp()) * 1000)));
    v_set_ms bigint;
begin
    -- current_setting() and a cast, not pg_settings: that view reads every setting there is.
    v_set_ms := extract(epoch from pg_catalog.current_setting('idle_in_transaction_session_timeout')::interval) * 1000;
    if v_set_ms = 0 or v_set_ms > v_left_ms then
        perform pg_catalog.set_config('idle_in_transaction_session_timeout', v_left_ms::text, true);
    end if;
    if pg_catalog.current_setting('server_version_num')::integer >= 170000 then
        v_set_ms := extract(epoch from pg_catalog.current_setting('transaction_timeout')::interval) * 1000;
        -- The running timer counts from when it was set, at the earliest from the start of the transaction.
        if v_set_ms = 0 or v_set_ms
               - extract(epoch from pg_catalog.clock_timestamp() - pg_catalog.transaction_timestamp()) * 1000 > v_left_ms then
            -- First 0: a timer that runs keeps its old end otherwise.
            perform pg_catalog.set_config('transaction_timeout', '0', true);
            perform pg_catalog.set_config('transaction_timeout', v_left_ms::text, true);
        end if;
    end if;
end
$$;
-- next statement
revoke all on function pgfence._limit_transaction(timestamptz) from public;
-- next statement
comment on function pgfence._limit_transaction(timestamptz) is
    'Sets the session''s time-outs for this transaction to what is left of the lease (R20).';
