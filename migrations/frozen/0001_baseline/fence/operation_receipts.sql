-- The receipts of an operation and of those that it took up, numbered through from 1 on, in order: what
-- a successor compares with what it is about to do (R12, R46). Receipts that were pruned leave a gap.
create function pgfence.operation_receipts(
    p_resource text, p_operation_root text, p_after bigint default 0, p_limit bigint default 10000
)
returns table (segment_number bigint, fence_token bigint, segment_seq bigint, payload_digest text)
language sql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select t.earlier_segments + r.segment_seq, r.fence_token, r.segment_seq, encode(r.payload_digest, 'hex')
      from pgfence._taken_up(p_resource, p_operation_root) as t
      join pgfence.receipts as r on r.resource = p_resource and r.fence_token = t.fence_token
     where r.segment_seq > p_after - t.earlier_segments
     order by r.fence_token, r.segment_seq
     limit p_limit
$$;
-- next statement
revoke all on function pgfence.operation_receipts(text, text, bigint, bigint) from public;
-- next statement
grant execute on function pgfence.operation_receipts(text, text, bigint, bigint) to pgfence_app, pgfence_auditor;
-- next statement
comment on function pgfence.operation_receipts(text, text, bigint, bigint) is
    'Receipts of the operation of a root and of those that it took up, numbered through: at most p_limit of them, after number p_after.';
