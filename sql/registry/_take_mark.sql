-- Takes a mark for this transaction, whatever others hold: the same one again when it is called again.
-- Never waits.
create function pgfence_registry._take_mark(p_name text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number integer := pg_catalog.pg_backend_pid();
begin
    while not pg_catalog.pg_try_advisory_xact_lock(pgfence_registry._mark(p_name), v_number) loop
        v_number := (pg_catalog.random() - 0.5) * 4294967295;
    end loop;
end
$$;
revoke all on function pgfence_registry._take_mark(text) from public;
comment on function pgfence_registry._take_mark(text) is
    'Shows that this transaction is busy with a new resource or a lease (R20).';
