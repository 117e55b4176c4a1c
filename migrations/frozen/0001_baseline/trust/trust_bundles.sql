-- Every trust bundle that was ever installed. The one with the highest version counts.
create table pgfence.trust_bundles (
    version        bigint not null,
    document       text collate "C" not null,
    digest         text collate "C" not null,
    signatures     text[] collate "C" not null,
    audience       text collate "C" not null,
    lowest_epoch   bigint not null,
    root_threshold bigint not null,
    issued_at      timestamptz not null,
    expires_at     timestamptz not null,
    installed_at   timestamptz not null default clock_timestamp(),
    installed_by   text not null default session_user,
    constraint trust_bundles_pkey primary key (version),
    constraint trust_bundles_version_check check (version >= 1),
    constraint trust_bundles_lowest_epoch_check check (lowest_epoch >= 0),
    constraint trust_bundles_root_threshold_check check (root_threshold >= 1)
);
-- next statement
grant select on pgfence.trust_bundles to pgfence_auditor;
-- next statement
comment on table pgfence.trust_bundles is
    'Trust bundles (R31), each with the signatures that let it in. digest: SHA-256 of document, hexadecimal.';
