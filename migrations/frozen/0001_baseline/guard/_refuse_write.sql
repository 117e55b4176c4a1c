-- Refuses what a guard caught: rows of a resource that this transaction did not admit (null where
-- the template gives none), or a TRUNCATE.
create function pgfence._refuse_write(p_table oid, p_operation text, p_resource text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_table constant text := p_table::regclass;
    v_detail constant jsonb := jsonb_build_object('table', v_table, 'operation', p_operation, 'resource', p_resource);
begin
    if p_operation = 'TRUNCATE' then
        perform pgfence._raise('NOT_ADMITTED', format('%s is protected: TRUNCATE would remove rows of every resource', v_table),
            'Delete the rows of one resource, in a transaction that pgfence.fenced_apply admitted for it.', 'R23', v_detail);
    elsif pgfence._is_identifier(p_resource) then
        perform pgfence._raise('NOT_ADMITTED',
            format('%s: a row belongs to the resource %s, which is not admitted in this transaction', v_table, p_resource),
            'Call pgfence.fenced_apply with a grant for this resource earlier in the same transaction, and write only if '
            'it answers ACCEPTED.', 'R23', v_detail);
    else
        perform pgfence._raise('NOT_ADMITTED', format('%s: a row belongs to no resource', v_table),
            'A column that names the resource is NULL, out of range, contains the separator after it, or is not printable '
            'ASCII without space, double quote and backslash.', 'R23', v_detail - 'resource');
    end if;
end
$$;
-- next statement
revoke all on function pgfence._refuse_write(oid, text, text) from public;
-- next statement
comment on function pgfence._refuse_write(oid, text, text) is 'Raises PF201 for a guarded write without admission (R23).';
