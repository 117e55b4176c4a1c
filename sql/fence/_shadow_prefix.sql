-- The prefix by which a resource is in shadow; null: it is enforced. The one place that says so.
-- The prefixes of one text are in the order of their length.
create function pgfence._shadow_prefix(p_resource text)
returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select case when r.enforced_since is null then r.prefix end
      from pgfence.rollout as r
     where r.prefix <= p_resource and pg_catalog.starts_with(p_resource, r.prefix)
     order by r.prefix desc
     limit 1
$$;
revoke all on function pgfence._shadow_prefix(text) from public;
comment on function pgfence._shadow_prefix(text) is
    'Prefix of the entry by which a resource is in shadow; null where it is enforced (R28, R29).';
