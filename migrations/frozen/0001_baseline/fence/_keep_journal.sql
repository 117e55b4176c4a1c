-- Refuses to change or forget a line of the journal or a stretch of pruned receipts, also to the owner role,
-- and to empty a table whose changes the journal notes row by row.
create function pgfence._keep_journal()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._raise('CLOSED_TABLE',
        pg_catalog.format('%s on %I.%I: what was done is never forgotten', tg_op, tg_table_schema, tg_table_name),
        'Its rows are only added, by pgfence itself.', 'R26');
    return null;
end
$$;
-- next statement
revoke all on function pgfence._keep_journal() from public;
-- next statement
comment on function pgfence._keep_journal() is 'Trigger: raises PF204, what was done is only added to (R26).';
-- next statement
create trigger keep_journal before update or delete or truncate on pgfence.journal
    for each statement execute function pgfence._keep_journal();
-- next statement
alter table pgfence.journal enable always trigger keep_journal;
-- next statement
create trigger keep_stretches before update or delete or truncate on pgfence.pruned_stretches
    for each statement execute function pgfence._keep_journal();
-- next statement
alter table pgfence.pruned_stretches enable always trigger keep_stretches;
