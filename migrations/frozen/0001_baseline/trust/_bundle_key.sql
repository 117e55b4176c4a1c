-- One key of a trust bundle's document, fields in the document's order.
create type pgfence._bundle_key as (
    expires_at bigint,
    kid        text collate "C",
    not_before bigint,
    public_key text collate "C",
    purpose    text collate "C"
);
-- next statement
comment on type pgfence._bundle_key is
    'A key in the document of a trust bundle. Times are microseconds since the epoch, public_key is hexadecimal.';
