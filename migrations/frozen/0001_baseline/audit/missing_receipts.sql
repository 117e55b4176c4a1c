-- Which of these receipts of a resource the database neither has nor has pruned. One that was acknowledged
-- to a worker and is missing here was lost: by a failover to a standby that was behind, or because files
-- were put back (R47). The arrays belong together, element by element; digests are in hex.
create function pgfence.missing_receipts(
    p_resource text, p_operation_roots text[], p_segments bigint[], p_digests text[]
)
returns table (digest text)
language sql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select k.digest
      from unnest(p_operation_roots, p_segments, p_digests) with ordinality as k (operation_root, segment_seq, digest, place)
     where not exists (
           select from pgfence.operations as o
             join pgfence.receipts as r on r.resource = o.resource and r.fence_token = o.fence_token
            where o.resource = p_resource and o.operation_root = k.operation_root
              and r.segment_seq = k.segment_seq and encode(r.digest, 'hex') = k.digest)
       and not pgfence.receipt_was_pruned(p_resource, k.operation_root, k.segment_seq)
     order by k.place
$$;
-- next statement
revoke all on function pgfence.missing_receipts(text, text[], bigint[], text[]) from public;
-- next statement
grant execute on function pgfence.missing_receipts(text, text[], bigint[], text[]) to pgfence_app, pgfence_auditor;
-- next statement
comment on function pgfence.missing_receipts(text, text[], bigint[], text[]) is
    'Digests of those of the given receipts, each by root, segment and digest, that are neither here nor pruned (R47).';
