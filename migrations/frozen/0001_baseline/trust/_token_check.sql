-- What _verify_token found out. verdict NULL means good, and then all but reason is set.
-- key_expires_at is when the key or the whole bundle ends, whichever comes first.
create type pgfence._token_check as (
    verdict        text collate "C",
    reason         text collate "C",
    message        text collate "C",
    message_digest bytea,
    kid            text collate "C",
    key_expires_at timestamptz,
    bundle_version bigint
);
-- next statement
comment on type pgfence._token_check is
    'Result of _verify_token: verdict NULL for a good token, else MALFORMED, UNKNOWN_KEY or BAD_SIGNATURE with a reason.';
