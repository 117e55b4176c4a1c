-- Whether every table whose rows' resources begin with the prefix is an ordinary one with its guard
-- whole. VOLATILE, so that it reads what is committed now whoever calls it. (Partitions come and go,
-- so a partitioned table is looked at by every admission.)
create function pgfence._look_at_guards(p_prefix text)
returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return not exists (
        select from pgfence.guards as g
        where g.literal_prefix = p_prefix and (g.is_partitioned or g.unprotectable is not null or g.missing is not null)
    );
end
$$;
revoke all on function pgfence._look_at_guards(text) from public;
comment on function pgfence._look_at_guards(text) is 'Whether the guards of all tables of a prefix are whole (R25).';
