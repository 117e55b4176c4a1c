-- One row: what this database is, and what it trusts. `version` rises with every change of bundle,
-- policy or workload, so that an old snapshot can be told from a new one (R9).
create table pgfence.configuration (
    only_row           boolean not null default true
        constraint configuration_pkey primary key
        constraint configuration_one_row check (only_row),
    version            bigint  not null default 1,
    audience           text collate "C",
    registry_is_local  boolean not null default true,
    clock_tolerance_ms bigint  not null default 500
        constraint configuration_clock_tolerance check (clock_tolerance_ms between 0 and 10000),
    proofs_from        timestamptz not null default 'epoch',
    issuer             text collate "C" not null default 'registry',
    issuer_epoch       bigint  not null default 1,
    epoch_floor        bigint  not null default 0,
    fence_base         bigint  not null default 0,
    system_identifier  bigint  not null,
    timeline           text    not null,
    database_oid       oid     not null
);
-- next statement
comment on table pgfence.configuration is
    'One row: audience, registry, clock tolerance, epochs, and the identity of this database (R7, R9, R39).';
-- next statement
comment on column pgfence.configuration.version is
    'Rises with every change of trust bundle, policy or workload.';
-- next statement
comment on column pgfence.configuration.registry_is_local is
    'True: the lease is looked up in pgfence_registry. False: a status proof must show it (R13).';
-- next statement
comment on column pgfence.configuration.clock_tolerance_ms is
    'Largest difference, in milliseconds, between this clock and a distant registry''s (R13).';
-- next statement
comment on column pgfence.configuration.proofs_from is
    'From a distant registry only what it signed after this moment counts (R39).';
-- next statement
comment on column pgfence.configuration.issuer_epoch is
    'Epoch that new grants carry; never below the bundle''s lowest epoch.';
-- next statement
comment on column pgfence.configuration.epoch_floor is
    'Grants of a lower epoch are refused; never below the bundle''s lowest epoch, and raised when this database turns out to be a copy (R7, R39).';
-- next statement
comment on column pgfence.configuration.fence_base is
    'New fence tokens lie above it; raised by a random step when this database is a copy (R39).';
-- next statement
grant select on pgfence.configuration to pgfence_auditor;
