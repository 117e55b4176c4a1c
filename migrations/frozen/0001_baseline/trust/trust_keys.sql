-- The public keys of each bundle, taken from its document.
create table pgfence.trust_keys (
    bundle_version bigint not null,
    kid            text collate "C" not null,
    purpose        text collate "C" not null,
    public_key     bytea not null,
    not_before     timestamptz not null,
    expires_at     timestamptz not null,
    constraint trust_keys_pkey primary key (bundle_version, kid),
    constraint trust_keys_bundle_version_fkey foreign key (bundle_version)
        references pgfence.trust_bundles (version),
    constraint trust_keys_kid_check check (kid = left(encode(sha256(public_key), 'hex'), 16)),
    constraint trust_keys_purpose_check check (purpose in ('grant', 'root', 'status')),
    constraint trust_keys_public_key_check check (length(public_key) = 32)
);
-- next statement
grant select on pgfence.trust_keys to pgfence_auditor;
-- next statement
comment on table pgfence.trust_keys is
    'The public keys of each trust bundle. kid: the first 16 hexadecimal digits of SHA-256 of the key (R2).';
