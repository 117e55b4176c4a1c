-- Evidence of what was refused, in a fixed number of slots (R18). Authenticated attempts (a grant
-- with a good signature) have slots of their own, so that a flood of garbage cannot push them out.
create table pgfence.refusals (
    slot          integer not null constraint refusals_pkey primary key,
    authenticated boolean not null,
    attempt       bytea,
    verdict       text,
    reason        text,
    session_role  text,
    resource      text collate "C",
    fence_token   bigint,
    owner         text collate "C",
    grant_digest  bytea,
    last_segment_seq bigint,
    occurrences   bigint not null default 0,
    first_at      timestamptz,
    last_at       timestamptz
) with (fillfactor = 50);
-- next statement
comment on table pgfence.refusals is
    'Refused attempts: 1,024 authenticated and 256 other kinds at most, the oldest gives way; every refusal is in the server log too (R18).';
-- next statement
comment on column pgfence.refusals.attempt is
    'SHA-256 naming the kind of attempt: verdict, reason, grant and session role. Null in a free slot.';
-- next statement
create index refusals_attempt on pgfence.refusals (attempt);
-- next statement
create index refusals_oldest on pgfence.refusals (authenticated, last_at nulls first);
-- next statement
insert into pgfence.refusals (slot, authenticated)
select s, s <= 1024 from pg_catalog.generate_series(1, 1280) as s;
-- next statement
grant select on pgfence.refusals to pgfence_auditor;
