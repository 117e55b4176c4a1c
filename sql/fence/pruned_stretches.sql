-- What stands in the chain in place of receipts that were pruned: where the stretch began and ended, and
-- how many receipts it had (R22). Only appended to; the stretches of a resource are the start of its chain.
create table pgfence.pruned_stretches (
    resource        text collate "C" not null,
    from_fence      bigint not null,
    from_segment    bigint not null,
    to_fence        bigint not null,
    to_segment      bigint not null,
    receipts        bigint not null
        constraint pruned_stretches_are_not_empty check (receipts > 0),
    previous_digest bytea not null,
    last_digest     bytea not null,
    pruned_at       timestamptz not null,
    pruned_by       text not null,
    digest          bytea not null,
    constraint pruned_stretches_pkey primary key (resource, from_fence, from_segment)
);

comment on table pgfence.pruned_stretches is
    'Receipts that were pruned: their ends and their number, for the chain to go on from (R22).';
comment on column pgfence.pruned_stretches.previous_digest is
    'Digest of the receipt before the first one that was pruned; empty at the start of the chain.';
comment on column pgfence.pruned_stretches.last_digest is 'Digest of the last receipt that was pruned.';
comment on column pgfence.pruned_stretches.pruned_by is 'session_user of whoever pruned them.';
comment on column pgfence.pruned_stretches.digest is 'SHA-256 over everything that the row says.';

grant select on pgfence.pruned_stretches to pgfence_auditor;
