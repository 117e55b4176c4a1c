-- What the registry says of a lease now.
create function pgfence_registry.look(p_lease text)
returns pgfence_registry.answer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_grant constant pgfence_registry.grants := pgfence_registry._own_grant(p_lease);
begin
    if v_grant.lease is null then
        return pgfence_registry._unknown(p_lease);
    end if;
    return pgfence_registry._answer_of_grant(v_grant, false);
end
$$;
-- next statement
revoke all on function pgfence_registry.look(text) from public;
-- next statement
grant execute on function pgfence_registry.look(text) to pgfence_app;
-- next statement
comment on function pgfence_registry.look(text) is
    'State of one of the caller''s leases, without locking anything (R54). Raises PF301, PF302.';
