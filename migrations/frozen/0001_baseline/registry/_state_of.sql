-- State of a grant as the registry's clock has it; nobody else's counts (R38).
create function pgfence_registry._state_of(p_grant pgfence_registry.grants, p_now timestamptz)
returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select case when p_grant.state = 'HELD' and p_grant.lease_ends_at <= p_now then 'EXPIRED'
                else p_grant.state end
$$;
-- next statement
revoke all on function pgfence_registry._state_of(pgfence_registry.grants, timestamptz) from public;
-- next statement
comment on function pgfence_registry._state_of(pgfence_registry.grants, timestamptz) is
    'HELD, EXPIRED, RELEASED or SUPERSEDED at a time of the registry''s clock (R38).';
