-- The protected table that a table is, or that it is a partition of; null: neither.
create function pgfence._protected_table_of(p_table oid)
returns regclass
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select p.protected_table from pgfence.protected_tables as p
     where p.protected_table = p_table or p.protected_table in (select a.relid from pg_partition_ancestors(p_table) as a)
     limit 1
$$;
-- next statement
revoke all on function pgfence._protected_table_of(oid) from public;
-- next statement
comment on function pgfence._protected_table_of(oid) is 'The protected table that a table is, or that it is a partition of.';
