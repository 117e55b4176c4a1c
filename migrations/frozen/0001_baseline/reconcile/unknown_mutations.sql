-- Segments whose COMMIT was not answered, as workers report them, until the database can prove what became
-- of them; and what a domain handler or a person answered where it cannot (R44, R45). What is proven needs
-- no row: the receipts go on proving it.
create table pgfence.unknown_mutations (
    resource       text collate "C" not null,
    operation_root text not null,
    segment_seq    bigint not null,
    fence_token    bigint not null,
    workload       text collate "C" not null,
    payload_digest bytea,
    reported_at    timestamptz,
    reported_by    text,
    answer         text
        constraint unknown_mutations_answer check (answer in ('APPLIED', 'NOT_APPLIED', 'ASK_A_PERSON')),
    evidence       text
        constraint unknown_mutations_evidence check (pg_catalog.length(evidence) between 1 and 4000),
    handler        text
        constraint unknown_mutations_handler check (pg_catalog.length(handler) <= 255),
    answered_at    timestamptz,
    answered_by    text,
    constraint unknown_mutations_pkey primary key (resource, operation_root, segment_seq),
    constraint unknown_mutations_is_reported check (pg_catalog.num_nulls(payload_digest, reported_at, reported_by) in (0, 3)),
    constraint unknown_mutations_is_answered check (pg_catalog.num_nulls(answer, evidence, handler, answered_at, answered_by) in (0, 5)),
    constraint unknown_mutations_is_something check (reported_at is not null or answered_at is not null)
);
-- next statement
comment on table pgfence.unknown_mutations is
    'Segments of which nobody knows yet whether they were applied, at most 64 an operation; and what was answered where nothing could be proven (R44, R45).';
-- next statement
comment on column pgfence.unknown_mutations.reported_at is
    'Null where nobody reported it: the lease ended without release, and somebody answered for what was left.';
-- next statement
comment on column pgfence.unknown_mutations.handler is 'What answered, as it calls itself; empty for a person.';
-- next statement
comment on column pgfence.unknown_mutations.answered_by is 'session_user of the answer.';
-- next statement
grant select on pgfence.unknown_mutations to pgfence_auditor;
-- next statement
-- Leases that were never given back: what unknown_outcomes() looks through.
create index grants_not_released on pgfence_registry.grants (resource) where state <> 'RELEASED';
