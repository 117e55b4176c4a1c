-- What is being tried out and what is enforced, by longest prefix (R28, R29). A resource without an
-- entry is enforced. An entry goes from shadow to enforced and never back.
create table pgfence.rollout (
    prefix         text collate "C" not null constraint rollout_pkey primary key,
    shadow_since   timestamptz,
    shadow_by      text,
    enforced_since timestamptz,
    enforced_by    text,
    constraint rollout_shadow check ((shadow_since is null) = (shadow_by is null)),
    constraint rollout_enforced check ((enforced_since is null) = (enforced_by is null)),
    constraint rollout_is_something check (shadow_since is not null or enforced_since is not null)
);
-- next statement
comment on table pgfence.rollout is
    'Prefixes in shadow (enforced_since is null) and enforced ones; the longest prefix decides, what has none is enforced (R29).';
-- next statement
comment on column pgfence.rollout.shadow_since is 'Null where the prefix was never in shadow.';
-- next statement
comment on column pgfence.rollout.shadow_by is 'session_user of the call of shadow().';
-- next statement
comment on column pgfence.rollout.enforced_by is 'session_user of the call of enforce().';
-- next statement
grant select on pgfence.rollout to pgfence_auditor;
