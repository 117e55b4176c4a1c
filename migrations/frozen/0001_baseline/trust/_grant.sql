-- A grant (R1), fields in the contract's order. All text compares byte by byte.
create type pgfence._grant as (
    schema            text collate "C",
    audience          text collate "C",
    resource          text collate "C",
    owner             text collate "C",
    request_id        text collate "C",
    lease             text collate "C",
    operation_class   text collate "C",
    operation_root    text collate "C",
    continues_root    text collate "C",
    fence_token       bigint,
    backend           text collate "C",
    backend_revision  bigint,
    policy_generation bigint,
    issuer            text collate "C",
    issuer_epoch      bigint,
    issued_at         bigint,
    ttl_ms            bigint,
    status_until      bigint,
    state             text collate "C"
);
-- next statement
comment on type pgfence._grant is
    'The claims of a lockGrant.v1 (R1). Times are microseconds since the epoch on the registry''s clock.';
