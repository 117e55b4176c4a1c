-- The channel on which a waiter is woken. It names a request, and tells nothing about it.
create function pgfence_registry._wake_channel(p_workload text, p_request_id text)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select 'pgfence_' || pg_catalog.substr(pg_catalog.encode(
        pg_catalog.sha256(pg_catalog.convert_to(p_workload || ' ' || p_request_id, 'UTF8')), 'hex'), 1, 32)
$$;
-- next statement
revoke all on function pgfence_registry._wake_channel(text, text) from public;
-- next statement
comment on function pgfence_registry._wake_channel(text, text) is 'LISTEN channel of one request (R36).';
