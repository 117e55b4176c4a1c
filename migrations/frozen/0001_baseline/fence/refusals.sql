-- Evidence of what was refused, in a fixed number of slots (R18). Authenticated attempts (a grant
-- with a good signature) have slots of their own, so that a flood of garbage cannot push them out; so has what
-- would have been refused in shadow, so that it cannot push out what was (R28).
create table pgfence.refusals (
    slot          integer not null constraint refusals_pkey primary key,
    authenticated boolean not null,
    in_shadow     boolean not null,
    attempt       bytea,
    verdict       text,
    reason        text,
    session_role  text,
    resource      text collate "C",
    fence_token   bigint,
    owner         text collate "C",
    grant_digest  bytea,
    last_segment_seq bigint,
    shadow_prefix text collate "C",
    written_table text,
    last_transaction xid8,
    occurrences   bigint not null default 0,
    first_at      timestamptz,
    last_at       timestamptz
) with (fillfactor = 50);
-- next statement
comment on table pgfence.refusals is
    'Refused attempts: 1,024 authenticated and 256 other kinds at most, in shadow 512 and 128; the oldest gives way; every refusal is in the server log too (R18, R28).';
-- next statement
comment on column pgfence.refusals.attempt is
    'SHA-256 naming the kind of attempt: verdict, reason, grant, session role, shadow prefix and table. Null in a free slot.';
-- next statement
comment on column pgfence.refusals.in_shadow is 'It was let through, and would have been refused (R28).';
-- next statement
comment on column pgfence.refusals.shadow_prefix is 'The entry of pgfence.rollout by which it was let through.';
-- next statement
comment on column pgfence.refusals.written_table is
    'Protected table that was written without admission; occurrences then counts transactions, and resource is the last one.';
-- next statement
create index refusals_attempt on pgfence.refusals (attempt);
-- next statement
create index refusals_oldest on pgfence.refusals (in_shadow, authenticated, last_at nulls first);
-- next statement
insert into pgfence.refusals (slot, authenticated, in_shadow)
select s, s <= 1024 or s > 1408, s > 1280 from pg_catalog.generate_series(1, 1920) as s;
-- next statement
grant select on pgfence.refusals to pgfence_auditor;
