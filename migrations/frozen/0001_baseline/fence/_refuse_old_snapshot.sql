-- Ends in 40001 when bundle, policy or workloads have changed since the snapshot of a transaction
-- outside READ COMMITTED was taken (R9). The row lock that finds out is given back at once, by
-- undoing it: whoever is refused must not hold up the next change.
create function pgfence._refuse_old_snapshot()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform from pgfence.configuration as c for share;
    raise exception using errcode = 'PF000', message = 'undo the lock';
exception
    when sqlstate 'PF000' then
        return;
end
$$;
-- next statement
revoke all on function pgfence._refuse_old_snapshot() from public;
-- next statement
comment on function pgfence._refuse_old_snapshot() is
    'Raises 40001 in a transaction whose snapshot is older than the configuration (R9).';
