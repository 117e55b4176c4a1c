-- The prefix by which all of a protected table (or of the one that a partition belongs to) is in
-- shadow, whatever its rows say; null: something that its template can name is enforced.
create function pgfence._shadow_prefix_of_table(p_table oid)
returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select pgfence._shadow_prefix(p.literal_prefix)
      from pgfence.protected_tables as p
     where p.protected_table = pgfence._protected_table_of(p_table)
       and not exists (select from pgfence.rollout as r
                        where starts_with(r.prefix, p.literal_prefix) and r.enforced_since is not null)
$$;
revoke all on function pgfence._shadow_prefix_of_table(oid) from public;
comment on function pgfence._shadow_prefix_of_table(oid) is
    'Prefix of the entry by which a whole table is in shadow; null where any of it is enforced (R28, R29).';
