-- Every grant that was ever issued. Renewing updates this row alone; any other change updates the
-- resource's fence row in the same transaction, so that an open segment and a change of owner
-- exclude each other (R52). Nothing references it: a foreign key would lock its rows.
create table pgfence_registry.grants (
    lease         text collate "C" not null constraint grants_pkey primary key,
    resource      text collate "C" not null,
    fence_token   bigint not null,
    owner         text collate "C" not null,
    request_id    text collate "C" not null,
    issuer_epoch  bigint not null,
    ttl_ms        bigint not null,
    message       text not null,
    digest        bytea not null constraint grants_digest_is_unique unique,
    token         text,
    state         text not null default 'HELD'
        constraint grants_state check (state in ('HELD', 'RELEASED', 'SUPERSEDED')),
    granted_at    timestamptz not null,
    lease_ends_at timestamptz not null,
    ended_at      timestamptz,
    term          bigint not null default 1,
    constraint grants_fence_is_minted_once unique (resource, fence_token)
) with (fillfactor = 70);

comment on table pgfence_registry.grants is
    'Every grant ever issued: what was signed, and whether the lease is held. EXPIRED is HELD past lease_ends_at.';
comment on column pgfence_registry.grants.message is 'The canonical JSON that is signed (R3).';
comment on column pgfence_registry.grants.term is 'The coordinator that chose this owner.';
comment on column pgfence_registry.grants.token is 'The signed token; null until a registry process has signed it.';

grant select on pgfence_registry.grants to pgfence_auditor;
