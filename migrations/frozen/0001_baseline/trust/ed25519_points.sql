-- Precomputed multiples of -A for each public key A: slot 256 * w + n holds n * 256^w * -A, so that
-- a scalar of 32 bytes times -A is the sum of 32 rows, one a byte. Points are kept as mixed addition
-- wants them (affine Niels form), each number from 0 to p-1. 8,192 rows, about 1.7 MB, a key.
create table pgfence.ed25519_points (
    key_id   integer not null,
    slot     integer not null,
    y_plus_x numeric not null,
    y_less_x numeric not null,
    xy2d     numeric not null,
    constraint ed25519_points_pkey primary key (key_id, slot),
    constraint ed25519_points_slot_check check (slot between 0 and 8191)
);
-- next statement
comment on table pgfence.ed25519_points is
    'Comb tables for Ed25519: slot 256 * w + n holds n * 256^w * -A as (y+x, y-x, 2dxy) modulo 2^255-19.';
