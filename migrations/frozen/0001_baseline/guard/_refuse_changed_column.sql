-- Refuses every write (in shadow: notes it, R28) while a column that names the resource has another type than the guard knows.
create function pgfence._refuse_changed_column(p_table oid)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_shadow_prefix constant text := pgfence._shadow_prefix_of_table(p_table);
begin
    if v_shadow_prefix is not null then
        perform pgfence._record_refusal('GUARD_MISSING', null, null, null, true, null, v_shadow_prefix,
            coalesce(pgfence._protected_table_of(p_table), p_table::regclass)::text, true);
        return;
    end if;
    perform pgfence._raise('GUARD_MISSING',
        format('%s: a column that names the resource has changed its type since protect', p_table::regclass),
        'The owner of the protected table runs pgfence.protect again, with the same template.',
        'R25', jsonb_build_object('table', p_table::regclass::text));
end
$$;
-- next statement
revoke all on function pgfence._refuse_changed_column(oid) from public;
-- next statement
comment on function pgfence._refuse_changed_column(oid) is 'Raises PF202: the guard does not fit the table any more (R25).';
