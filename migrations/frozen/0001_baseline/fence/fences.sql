-- One row a resource: the highest fence token that was ever accepted, whose it is, and where its
-- segments end. Locking this row is what makes a stale write impossible (R9, R51).
create table pgfence.fences (
    resource                    text collate "C" not null constraint fences_pkey primary key,
    highest_fence               bigint not null default 0
        constraint fences_highest_fence check (highest_fence between 0 and 9007199254740991),
    operation_root              text,
    grant_digest                bytea,
    last_segment                bigint not null default 0,
    receipt_count               bigint not null default 0,
    -- what the last full check of the rules found: the next segment need not look again
    checked_fence               bigint,
    checked_token               bytea,
    checked_role                text,
    checked_until               timestamptz,
    checked_version             bigint,
    checked_server_start        timestamptz,
    -- registry: changed in the transaction that changes a grant (R52)
    issued_fence                bigint not null default 0
        constraint fences_issued_fence check (issued_fence between 0 and 9007199254740991),
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
comment on column pgfence.fences.receipt_count is 'Receipts ever written; with the last segment, the end of the chain (R22).';
-- next statement
comment on column pgfence.fences.checked_fence is
    'Fence token of the grant that passed every rule; what was found is of no use once a higher one stands here.';
-- next statement
comment on column pgfence.fences.checked_token is
    'SHA-256 of its token; null when every segment must be checked in full.';
-- next statement
comment on column pgfence.fences.checked_role is 'Login role that presented it (R6).';
-- next statement
comment on column pgfence.fences.checked_until is 'When its key or the bundle ends (R4).';
-- next statement
comment on column pgfence.fences.checked_version is 'Version of the configuration by which it was checked (R9).';
-- next statement
comment on column pgfence.fences.checked_server_start is
    'When the server had started that checked it: under the same one, the system identifier is the same (R39).';
-- next statement
comment on column pgfence.fences.admitted_until is 'When the admitting transaction must have committed (R20).';
-- next statement
comment on column pgfence.fences.commit_look is 'How deep the look at COMMIT is in its probe (R19).';
-- next statement
create unique index fences_checked_token on pgfence.fences (checked_token);
-- next statement
grant select on pgfence.fences to pgfence_auditor;
