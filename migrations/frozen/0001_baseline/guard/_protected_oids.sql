-- The protected tables as they are committed now, hence VOLATILE.
create function pgfence._protected_oids()
returns oid[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(select p.protected_table::oid from pgfence.protected_tables as p order by p.protected_table::oid);
end
$$;
-- next statement
revoke all on function pgfence._protected_oids() from public;
-- next statement
comment on function pgfence._protected_oids() is 'OIDs of the protected tables, in order.';
