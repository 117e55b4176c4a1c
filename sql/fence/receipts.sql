-- The proof that one segment was accepted, written in the transaction of its business rows (R15).
-- In the order (fence_token, segment_seq) the receipts of a resource form a hash chain (R22).
create table pgfence.receipts (
    resource        text collate "C" not null,
    fence_token     bigint not null,
    segment_seq     bigint not null,
    operation_root  text not null,
    grant_digest    bytea not null,
    payload_digest  bytea not null,
    session_role    text not null,
    accepted_at     timestamptz not null,
    previous_digest bytea not null,
    digest          bytea not null,
    constraint receipts_pkey primary key (resource, fence_token, segment_seq)
);

comment on table pgfence.receipts is
    'One row for each accepted segment; a hash chain in the order of fence token and segment (R15, R22).';
comment on column pgfence.receipts.payload_digest is 'SHA-256 of the payload''s UTF-8 bytes.';
comment on column pgfence.receipts.previous_digest is 'Digest of the receipt before; empty for the first.';

grant select on pgfence.receipts to pgfence_auditor;
