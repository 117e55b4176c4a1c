-- Keeps both digests of a payload conflict (R12). Not without end, or an owner that goes on and on fills the
-- disk: none where 16 of the segment can be seen, and the refusal counts the rest. A past owner has no fence row
-- lock, which would hold up its successor; so of sessions that write at once each may keep 16.
create function pgfence._quarantine_segment(
    p_receipt pgfence.receipts, p_offered_digest bytea
)
returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    insert into pgfence.quarantined_segments
        (resource, fence_token, segment_seq, accepted_digest, offered_digest, session_role, first_at)
    select p_receipt.resource, p_receipt.fence_token, p_receipt.segment_seq,
           p_receipt.payload_digest, p_offered_digest, session_user, pg_catalog.clock_timestamp()
     where (select pg_catalog.count(*) from pgfence.quarantined_segments as q
             where q.resource = p_receipt.resource and q.fence_token = p_receipt.fence_token
               and q.segment_seq = p_receipt.segment_seq) < 16
    on conflict do nothing
$$;
revoke all on function pgfence._quarantine_segment(pgfence.receipts, bytea) from public;
comment on function pgfence._quarantine_segment(pgfence.receipts, bytea) is
    'Records another payload offered for an accepted segment (R12).';
