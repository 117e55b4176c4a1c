-- Takes the mark for this transaction; false if another session has it. Never waits.
create function pgfence_registry._try_mark(p_name text)
returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select pg_catalog.pg_try_advisory_xact_lock(m.class, m.number) from pgfence_registry._mark(p_name) as m
$$;
-- next statement
revoke all on function pgfence_registry._try_mark(text) from public;
-- next statement
comment on function pgfence_registry._try_mark(text) is
    'Shows that this transaction is busy with a new resource or a lease; false if another one is (R20).';
