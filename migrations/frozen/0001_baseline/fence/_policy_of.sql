-- The policy that rules a resource: the one with the longest prefix. The empty prefix always exists;
-- the prefixes of one text are in the order of their length.
create function pgfence._policy_of(p_resource text)
returns pgfence.policies
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select p
      from pgfence.policies as p
     where p.prefix <= p_resource and pg_catalog.starts_with(p_resource, p.prefix)
     order by p.prefix desc
     limit 1
$$;
-- next statement
revoke all on function pgfence._policy_of(text) from public;
-- next statement
comment on function pgfence._policy_of(text) is 'The policy with the longest prefix of a resource (R8).';
