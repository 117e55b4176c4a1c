-- Raises the fence without a business row, so that the old owner is refused from now on (R21).
create function pgfence.advance(p_grant text, p_status text default null)
returns pgfence.verdict
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_grant is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'advance: p_grant is NULL', 'Pass the grant token.', 'R21');
    end if;
    return (pgfence._decide(p_grant collate "C", null, null, p_status collate "C")).answer;
end
$$;
-- next statement
revoke all on function pgfence.advance(text, text) from public;
-- next statement
grant execute on function pgfence.advance(text, text) to pgfence_app;
-- next statement
comment on function pgfence.advance(text, text) is
    'Raises the fence of a grant''s resource: ADVANCED, also when it stands there already; admits nothing (R21). Raises PF301.';
