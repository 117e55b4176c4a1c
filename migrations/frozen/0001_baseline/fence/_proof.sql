-- What a status proof shows of one grant, as pgfence._verify_proof found it. All null: none was given.
create type pgfence._proof as (
    verdict        text,
    reason         text,
    key_expires_at timestamptz,
    issued_at      timestamptz,
    valid_until    timestamptz
);
-- next statement
comment on type pgfence._proof is
    'A status proof: what is wrong with it, or its window on the registry''s clock, and when its key ends here.';
