-- What waits for a signature: the owners take turns, so that one which asks for very much holds up
-- nobody, and no more than a registry process signs in a moment. No row is locked: signing twice
-- gives the same bytes (Ed25519 is deterministic), while a signer that is stopped with a lock in its
-- hand would hold up everyone.
create function pgfence_registry.unsigned_grants()
returns table (lease text, message text)
language sql volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
    select u.lease, u.message
      from (select g.lease, g.message, g.granted_at,
                   pg_catalog.row_number() over (partition by g.owner order by g.granted_at) as turn
              from pgfence_registry.grants as g
             where g.token is null and g.state = 'HELD' and g.lease_ends_at > pg_catalog.clock_timestamp()) as u
     order by u.turn, u.granted_at
     limit 100
$$;
-- next statement
revoke all on function pgfence_registry.unsigned_grants() from public;
-- next statement
grant execute on function pgfence_registry.unsigned_grants() to pgfence_registry;
-- next statement
comment on function pgfence_registry.unsigned_grants() is
    'Decided grants that wait for a signature, at most 100; the owners take turns (R53).';
-- next statement
create index grants_unsigned on pgfence_registry.grants (granted_at) where token is null;
