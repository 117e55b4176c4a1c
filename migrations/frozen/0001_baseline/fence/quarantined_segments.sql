-- Payloads that came for a segment which had been accepted with another one (R12).
create table pgfence.quarantined_segments (
    resource        text collate "C" not null,
    fence_token     bigint not null,
    segment_seq     bigint not null,
    accepted_digest bytea not null,
    offered_digest  bytea not null,
    session_role    text not null,
    first_at        timestamptz not null,
    constraint quarantined_segments_pkey primary key (resource, fence_token, segment_seq, offered_digest)
);
-- next statement
comment on table pgfence.quarantined_segments is
    'Other payloads offered for an accepted segment; nothing was applied (R12). At most 16 for each segment, from sessions of a past owner that write at once 16 each.';
-- next statement
grant select on pgfence.quarantined_segments to pgfence_auditor;
