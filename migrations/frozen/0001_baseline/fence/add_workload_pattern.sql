-- Says that every login role whose name begins so acts for a workload: 'settler-*' names settler-1 and
-- settler-anything, also roles that are created later. The asterisk at the end is the only one.
create function pgfence.add_workload_pattern(p_workload text, p_pattern text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._owner_only();
    if (p_pattern ~ '^[^*]{3,}\*$' and pg_catalog.octet_length(p_pattern) <= 63) is not true then
        perform pgfence._raise('INVALID_ARGUMENT', pg_catalog.format('%L is no pattern', p_pattern),
            'Three characters or more and one asterisk, at the end, 63 bytes in all: settler-*. Nothing else is a wildcard.', 'R6');
    end if;
    perform pgfence._add_workload(p_workload, pg_catalog.left(p_pattern, -1), true, '');
end
$$;
-- next statement
revoke all on function pgfence.add_workload_pattern(text, text) from public;
-- next statement
comment on function pgfence.add_workload_pattern(text, text) is
    'Lets all login roles whose names begin so act for a workload (R6). Owner only. Raises PF301.';
