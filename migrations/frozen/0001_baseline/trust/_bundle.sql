-- The document of a trust bundle, fields in the document's order.
create type pgfence._bundle as (
    audience       text collate "C",
    expires_at     bigint,
    issued_at      bigint,
    keys           pgfence._bundle_key[],
    lowest_epoch   bigint,
    previous       text collate "C",
    root_threshold bigint,
    schema         text collate "C",
    version        bigint
);
-- next statement
comment on type pgfence._bundle is
    'The document of a trustBundle.v1. Times are microseconds since the epoch; previous is the digest of the bundle before, or empty.';
