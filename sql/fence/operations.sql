-- One row for each fence token that ever became the highest: who wrote under which root. It
-- remembers that the grant was verified (R4), that the root was used (R11), and who owned when.
create table pgfence.operations (
    resource          text collate "C" not null,
    fence_token       bigint not null,
    operation_root    text collate "C" not null,
    continues_root    text not null,
    operation_class   text collate "C" not null,
    owner             text collate "C" not null,
    lease             text collate "C" not null,
    request_id        text collate "C" not null,
    issued_at         bigint not null,
    grant_digest      bytea not null,
    -- the remembered verification
    token_digest      bytea not null,
    grant_message     text not null,
    bundle_version    bigint not null,
    key_expires_at    timestamptz not null,
    first_accepted_at timestamptz not null,
    pruned_segments   bigint not null default 0,
    constraint operations_pkey primary key (resource, fence_token),
    constraint operations_root_is_used_once unique (resource, operation_root),
    constraint operations_token_is_used_once unique (token_digest)
);

comment on table pgfence.operations is
    'Every fence token that became the highest of its resource, with the grant that carried it (R4, R11).';
comment on column pgfence.operations.issued_at is 'issuedAt of the grant: microseconds on the registry''s clock.';
comment on column pgfence.operations.pruned_segments is
    'Its receipts up to this segment were pruned; they stand in a row of pgfence.pruned_stretches (R22).';
comment on column pgfence.operations.token_digest is 'SHA-256 of the whole token whose verification is remembered.';

grant select on pgfence.operations to pgfence_auditor;
