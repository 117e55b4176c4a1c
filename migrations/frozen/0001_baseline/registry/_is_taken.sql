-- Has the lock service given a lease's resource to another session? It names one holder at a time: when
-- a registry process has seen the key of somebody who waits here, that of this lease is gone.
create function pgfence_registry._is_taken(p_grant pgfence_registry.grants)
returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pgfence_registry.requests as r
                    where r.resource = p_grant.resource and r.state = 'WAITING' and r.term = p_grant.term
                      and r.seen_at is not null and r.alive_until > pg_catalog.clock_timestamp())
$$;
-- next statement
revoke all on function pgfence_registry._is_taken(pgfence_registry.grants) from public;
-- next statement
comment on function pgfence_registry._is_taken(pgfence_registry.grants) is
    'Whether a registry process saw another session hold the resource at the lock service (R37).';
