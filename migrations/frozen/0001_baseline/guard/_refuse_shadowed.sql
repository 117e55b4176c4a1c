-- A guard reads the rows of its own statement by name. Were its trigger made without them, a
-- temporary view of that name, with functions of a user's in it, would be read instead.
create function pgfence._refuse_shadowed(p_table oid)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._raise('NOT_ADMITTED',
        format('%s is not written while a temporary relation is named pgfence_new_rows or pgfence_old_rows', p_table::regclass),
        'Drop or rename the temporary relation.', 'R26', jsonb_build_object('table', p_table::regclass::text));
end
$$;
-- next statement
revoke all on function pgfence._refuse_shadowed(oid) from public;
-- next statement
comment on function pgfence._refuse_shadowed(oid) is
    'Raises PF201: a temporary relation has the name of a guard''s rows (R26).';
