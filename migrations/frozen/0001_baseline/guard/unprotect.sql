-- Takes the guard off a table, and leaves a line in pgfence.journal. Waits for every open
-- transaction that has written the table, so what the guard let in is guarded to its COMMIT; nobody
-- reads or writes the table until this transaction is over. Leases and fences stay as they are.
create function pgfence.unprotect(p_table regclass)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- the whole tree, from the top, as who attaches a partition does
    if exists (select from pg_class as c where c.oid = p_table and c.relkind in ('r', 'p')) then
        execute format('lock table %s in access exclusive mode', p_table);
    end if;
    perform pgfence.finish_unprotection(p_table);
end
$$;
-- next statement
revoke all on function pgfence.unprotect(regclass) from public;
-- next statement
grant execute on function pgfence.unprotect(regclass) to pgfence_app;
-- next statement
comment on function pgfence.unprotect(regclass) is
    'Takes the guard off a table (R26). Raises PF301 without table or where it is not protected, 42501 for who is not its owner, or acts for a workload.';
