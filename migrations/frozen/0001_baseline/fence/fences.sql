-- One row a resource: the highest fence token that was ever accepted, whose it is, and where its
-- segments end. Locking this row is what makes a stale write impossible (R9, R51).
create table pgfence.fences (
    resource                    text collate "C" not null constraint fences_pkey primary key,
    highest_fence               bigint not null default 0,
    operation_root              text,
    grant_digest                bytea,
    last_segment                bigint not null default 0,
    receipt_count               bigint not null default 0,
    -- the chain of receipts: its end, and what was its end before
    last_digest                 bytea not null default '',
    previous_digest             bytea not null default '',
    -- what the last full check of the rules found: the next segment need not look again
    checked_hash                bigint,
    checked_role                text,
    checked_server              text collate "C",
    checked_version             bigint,
    checked_until               timestamptz,
    -- registry: changed in the transaction that changes a grant (R52)
    issued_fence                bigint not null default 0,
    current_lease               text collate "C",
    paused_because              text,
    -- admission: good only in the very transaction that wrote it (R24)
    admitted_transaction        xid8,
    admitted_transaction_start  timestamptz,
    admitted_backend            integer,
    admitted_until              timestamptz,
    commit_look                 integer not null default 0
) with (fillfactor = 70);
-- next statement
comment on table pgfence.fences is
    'One row a resource: highest fence, its root, last segment, and the admission of the running transaction.';
-- next statement
comment on column pgfence.fences.highest_fence is 'High-water mark of accepted fence tokens; never falls (R17).';
-- next statement
comment on column pgfence.fences.issued_fence is 'High-water mark of minted fence tokens; never falls (R37).';
-- next statement
comment on column pgfence.fences.current_lease is 'Lease that was granted last and not released.';
-- next statement
comment on column pgfence.fences.paused_because is 'Why no write is accepted; null when the resource is not paused.';
-- next statement
comment on column pgfence.fences.receipt_count is 'Receipts ever written (R22).';
-- next statement
comment on column pgfence.fences.last_digest is 'Digest of the last receipt, the end of the chain; empty when there is none (R22).';
-- next statement
comment on column pgfence.fences.previous_digest is
    'Digest of the receipt before the last one: what an UPDATE can return of it before PostgreSQL 18 (R22).';
-- next statement
comment on column pgfence.fences.checked_hash is
    'Hash of the token that passed every rule, the one that the registry keeps; null when the next segment must be checked in full.';
-- next statement
comment on column pgfence.fences.checked_role is 'Login role that presented it (R6).';
-- next statement
comment on column pgfence.fences.checked_server is 'Database and start of the server that checked it (R7, R39).';
-- next statement
comment on column pgfence.fences.checked_version is 'Version of the configuration by which it was checked (R9).';
-- next statement
comment on column pgfence.fences.checked_until is 'When its key or the bundle ends (R4).';
-- next statement
comment on column pgfence.fences.admitted_until is 'When the admitting transaction must have committed (R20).';
-- next statement
comment on column pgfence.fences.commit_look is 'How deep the look at COMMIT is in its probe (R19).';
-- next statement
create index fences_checked_hash on pgfence.fences (checked_hash);
-- next statement
grant select on pgfence.fences to pgfence_auditor;
