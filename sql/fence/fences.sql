-- One row a resource: the highest fence token that was ever accepted, whose it is, and where its
-- segments end. Locking this row is what makes a stale write impossible (R9, R51).
create table pgfence.fences (
    resource                    text collate "C" not null constraint fences_pkey primary key,
    highest_fence               bigint not null default 0
        constraint fences_highest_fence check (highest_fence between 0 and 9007199254740991),
    operation_root              text,
    grant_digest                bytea,
    last_segment                bigint not null default 0,
    -- chain of receipts (R22)
    receipt_count               bigint not null default 0,
    last_receipt_digest         bytea not null default '',
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

comment on table pgfence.fences is
    'One row a resource: highest fence, its root, last segment, and the admission of the running transaction.';
comment on column pgfence.fences.highest_fence is 'High-water mark of accepted fence tokens; never falls (R17).';
comment on column pgfence.fences.issued_fence is 'High-water mark of minted fence tokens; never falls (R37).';
comment on column pgfence.fences.current_lease is 'Lease that was granted last and not released.';
comment on column pgfence.fences.paused_because is 'Why no write is accepted; null when the resource is not paused.';
comment on column pgfence.fences.admitted_until is 'When the admitting transaction must have committed (R20).';
comment on column pgfence.fences.commit_look is 'How deep the look at COMMIT is in its probe (R19).';

grant select on pgfence.fences to pgfence_auditor;
