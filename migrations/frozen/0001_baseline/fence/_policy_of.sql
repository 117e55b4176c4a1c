-- The policy that rules a resource: the one with the longest prefix. The empty prefix always exists.
create function pgfence._policy_of(p_resource text)
returns pgfence.policies
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select p
      from pgfence.policies as p
     where pg_catalog.starts_with(p_resource, p.prefix)
     order by pg_catalog.length(p.prefix) desc
     limit 1
$$;
-- next statement
revoke all on function pgfence._policy_of(text) from public;
-- next statement
comment on function pgfence._policy_of(text) is 'The policy with the longest prefix of a resource (R8).';
