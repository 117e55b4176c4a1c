-- Part of every admission: no table that holds rows of the resource has lost its guard (R25).
create function pgfence._attest_guards(p_resource text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_gap record;
begin
    select g.protected_table, g.template, g.relation, g.unprotectable, g.missing
    into v_gap
    from pgfence.guards as g
    where starts_with(p_resource, g.literal_prefix) and (g.unprotectable is not null or g.missing is not null)
    limit 1;
    if found then
        perform pgfence._raise('GUARD_MISSING',
            format('the guard of %s is not whole: %s', v_gap.protected_table,
                coalesce(format('%s %s', v_gap.relation, v_gap.unprotectable), format('on %s %s', v_gap.relation, v_gap.missing))),
            format(case when v_gap.unprotectable is not null then 'Change that, then run as the owner: %s'
                        else 'Run as the owner: %s' end,
                format('select pgfence.protect(%L, %L);', v_gap.protected_table, v_gap.template)),
            'R25',
            jsonb_build_object('table', v_gap.protected_table::text, 'relation', v_gap.relation::text, 'resource', p_resource));
    end if;
end
$$;
revoke all on function pgfence._attest_guards(text) from public;
comment on function pgfence._attest_guards(text) is
    'Raises PF202 where a table that may hold rows of the resource is not guarded as protect left it (R25).';
