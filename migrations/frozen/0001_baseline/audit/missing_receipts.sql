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
     -- a query of its own for each, by both keys: a join would read all receipts of the resource
     where (select true from pgfence.operations as o
             where o.resource = p_resource and o.operation_root = k.operation_root
               and (select encode(r.digest, 'hex') from pgfence.receipts as r
                     where r.resource = o.resource and r.fence_token = o.fence_token and r.segment_seq = k.segment_seq) = k.digest
           ) is null
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
