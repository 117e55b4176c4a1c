-- The grant of a lease, for the workload that owns it and nobody else (R36). A row of nulls if
-- there is none: whose lease it is otherwise is not told.
create function pgfence_registry._own_grant(p_lease text)
returns pgfence_registry.grants
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_grant pgfence_registry.grants;
begin
    if p_lease is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'the lease is NULL', 'Pass the lease of the grant.', 'R36');
    end if;
    select g.* into v_grant from pgfence_registry.grants as g
     where g.lease = p_lease and g.owner = pgfence_registry._caller();
    return v_grant;
end
$$;
-- next statement
revoke all on function pgfence_registry._own_grant(text) from public;
-- next statement
comment on function pgfence_registry._own_grant(text) is
    'Grant of a lease of the caller''s workload, or nulls (R36). Raises PF301, PF302.';
