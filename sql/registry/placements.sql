-- Which database guards the resources of this registry, by longest prefix. What has no entry is guarded
-- by this database itself. So a resource is in one database, and no worker chooses which.
create table pgfence_registry.placements (
    prefix    text collate "C" not null constraint placements_pkey primary key,
    audience  text collate "C" not null,
    placed_at timestamptz not null default pg_catalog.clock_timestamp(),
    placed_by text not null default session_user
);

comment on table pgfence_registry.placements is
    'Audience of the grants for every resource that starts with the prefix; the longest prefix decides (R1).';

grant select on pgfence_registry.placements to pgfence_auditor;
