-- A status proof (R1), fields in the contract's order. All text compares byte by byte.
create type pgfence._status as (
    schema       text collate "C",
    audience     text collate "C",
    grant_digest text collate "C",
    state        text collate "C",
    revision     bigint,
    issuer_epoch bigint,
    issued_at    bigint,
    valid_until  bigint
);
-- next statement
comment on type pgfence._status is
    'The claims of a lockStatus.v1 (R1). Times are microseconds since the epoch on the registry''s clock.';
