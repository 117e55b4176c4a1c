-- What became of a segment whose COMMIT was not answered (R45).
create type pgfence.outcome as (
    outcome        text,
    reason         text,
    explanation    text,
    ask            text,
    resource       text,
    operation_root text,
    segment_seq    bigint,
    fence_token    bigint,
    owner          text,
    payload_digest text,
    receipt        text,
    grant_digest   text,
    accepted_at    timestamptz
);
-- next statement
comment on type pgfence.outcome is
    'Answer of reconcile(): ACCEPTED with the receipt, PROVEN_NOT_APPLIED, PAYLOAD_CONFLICT (another payload was accepted), or UNRESOLVED with the reason why, and whom to ask. fence_token and owner are the operation''s; payload_digest, receipt and grant_digest are SHA-256 in hex (R45).';
