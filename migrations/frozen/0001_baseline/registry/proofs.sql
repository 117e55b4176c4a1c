-- The latest status proof of each grant: what is, or will be, signed (R1, R13).
create table pgfence_registry.proofs (
    lease       text collate "C" not null constraint proofs_pkey primary key,
    message     text not null,
    token       text,
    issued_at   timestamptz not null,
    valid_until timestamptz not null
);
-- next statement
comment on table pgfence_registry.proofs is
    'The latest status proof of each lease that a distant database must be shown (R13).';
-- next statement
comment on column pgfence_registry.proofs.token is 'The signed proof; null until a registry process has signed it.';
-- next statement
create index proofs_unsigned on pgfence_registry.proofs (issued_at) where token is null;
-- next statement
create index proofs_valid_until on pgfence_registry.proofs (valid_until);
-- next statement
grant select on pgfence_registry.proofs to pgfence_auditor;
