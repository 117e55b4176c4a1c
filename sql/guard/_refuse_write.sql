-- Refuses what a guard caught: rows of a resource that this transaction did not admit (null where
-- the template gives none), or a TRUNCATE. In shadow it notes that and returns (R28); what belongs to
-- no one resource is in shadow where the whole table is.
create function pgfence._refuse_write(p_table oid, p_operation text, p_resource text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_table constant text := p_table::regclass;
    v_detail constant jsonb := jsonb_build_object('table', v_table, 'operation', p_operation, 'resource', p_resource);
    v_shadow_prefix constant text := case when pgfence._is_identifier(p_resource) then pgfence._shadow_prefix(p_resource)
                                          else pgfence._shadow_prefix_of_table(p_table) end;
    v_grant pgfence._grant;
begin
    if v_shadow_prefix is not null then
        if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
            perform pgfence._refuse_old_snapshot();  -- enforced since?
        end if;
        v_grant.resource := p_resource;
        -- statements and rows, tables and partitions are counted as one
        perform pgfence._record_refusal('NOT_ADMITTED', null, v_grant, null, true, null, v_shadow_prefix,
            coalesce(pgfence._protected_table_of(p_table)::text, v_table), true);
        return;
    end if;
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
revoke all on function pgfence._refuse_write(oid, text, text) from public;
comment on function pgfence._refuse_write(oid, text, text) is
    'Raises PF201 for a guarded write without admission (R23); in shadow it notes it (R28).';
