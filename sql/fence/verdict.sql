-- What fenced_apply() and advance() answer.
create type pgfence.verdict as (
    verdict        text,
    reason         text,
    explanation    text,
    resource       text,
    fence_token    bigint,
    segment_seq    bigint,
    highest_fence  bigint,
    last_segment   bigint,
    receipt        text,
    payload_digest text,
    accepted_at    timestamptz,
    would_refuse   text
);

comment on type pgfence.verdict is
    'Answer of fenced_apply(): ACCEPTED, REPLAYED, ADVANCED, or the name of a refusal in pgfence.error_codes(); in shadow WOULD_REFUSE, and would_refuse has the name (R28). highest_fence and last_segment are those after the call; receipt and payload_digest are SHA-256 in hex.';
