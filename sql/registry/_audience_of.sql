-- The database that guards a resource: what the grants for it say (R1).
create function pgfence_registry._audience_of(p_resource text)
returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce((select p.audience
                       from pgfence_registry.placements as p
                      where p.prefix <= p_resource and pg_catalog.starts_with(p_resource, p.prefix)
                      order by p.prefix desc
                      limit 1),
                    (select c.audience from pgfence.configuration as c))
$$;
revoke all on function pgfence_registry._audience_of(text) from public;
comment on function pgfence_registry._audience_of(text) is
    'Audience by the longest prefix of a resource; this database''s own where none is placed (R1).';
