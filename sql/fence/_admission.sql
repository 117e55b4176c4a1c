-- A segment that is admitted in this transaction: what its receipt says, and until when it may commit.
create type pgfence._admission as (
    resource        text,
    fence_token     bigint,
    operation_root  text,
    grant_digest    bytea,
    previous_digest bytea,
    digest          bytea,
    accepted_at     timestamptz,
    checked_version bigint,
    ends_at         timestamptz,
    good_until      timestamptz
);
comment on type pgfence._admission is
    'An admitted segment. ends_at: when the transaction must have committed (R20), null in shadow, where it need not (R28); good_until: that, or when the key ends.';
