-- Status proofs that wait for a signature, in the way of unsigned_grants(): no lock, the owners take turns.
create function pgfence_registry.unsigned_proofs()
returns table (lease text, message text)
language sql volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
    select u.lease, u.message
      from (select p.lease, p.message, p.issued_at,
                   pg_catalog.row_number() over (partition by g.owner order by p.issued_at) as turn
              from pgfence_registry.proofs as p join pgfence_registry.grants as g on g.lease = p.lease
             where p.token is null and p.valid_until > pg_catalog.clock_timestamp()) as u
     order by u.turn, u.issued_at
     limit 100
$$;
-- next statement
revoke all on function pgfence_registry.unsigned_proofs() from public;
-- next statement
grant execute on function pgfence_registry.unsigned_proofs() to pgfence_registry;
-- next statement
comment on function pgfence_registry.unsigned_proofs() is
    'Status proofs that wait for a signature, at most 100; the owners take turns (R13, R53).';
