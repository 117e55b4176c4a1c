-- Public keys whose multiples stand in ed25519_points. Number 0 is the negative of the curve's base
-- point, read as a public key: so one rule makes every table, that of the base point too.
create table pgfence.ed25519_keys (
    key_id     integer not null,
    public_key bytea not null,
    constraint ed25519_keys_pkey primary key (key_id),
    constraint ed25519_keys_public_key_key unique (public_key),
    constraint ed25519_keys_base_check check (
        (key_id = 0) = (public_key = decode('58' || repeat('66', 30) || 'e6', 'hex')))
);
-- next statement
comment on table pgfence.ed25519_keys is
    'Public keys whose multiples have been computed (ed25519_points). 0: the negative of the base point.';
