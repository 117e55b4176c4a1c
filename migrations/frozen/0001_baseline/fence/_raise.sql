-- Raises one of pgfence.error_codes(): what happened, what to do next, which rule (as CONSTRAINT),
-- and JSON for programs as DETAIL.
create function pgfence._raise(
    p_name text, p_message text, p_hint text, p_rule text, p_detail jsonb default '{}'
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_sqlstate text;
begin
    select c.sqlstate into strict v_sqlstate from pgfence.error_codes() as c where c.name = p_name;
    raise exception using
        errcode = v_sqlstate,
        message = p_message,
        detail = (pg_catalog.jsonb_build_object('error', p_name) || p_detail)::text,
        hint = p_hint,
        constraint = p_rule;
end
$$;
-- next statement
revoke all on function pgfence._raise(text, text, text, text, jsonb) from public;
-- next statement
comment on function pgfence._raise(text, text, text, text, jsonb) is
    'Raises a named error of pgfence.error_codes() with message, hint, rule and JSON detail.';
