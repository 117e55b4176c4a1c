-- The receipt of one segment by its operation ID, if it was accepted. A look without a lock: what
-- is not there may still be on its way in an open transaction (R45).
create function pgfence.find_receipt(p_resource text, p_operation_root text, p_segment_seq bigint)
returns setof pgfence.receipts
language sql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select r.*
      from pgfence.operations as o
      join pgfence.receipts as r on r.resource = o.resource and r.fence_token = o.fence_token
     where o.resource = p_resource and o.operation_root = p_operation_root and r.segment_seq = p_segment_seq
$$;
-- next statement
revoke all on function pgfence.find_receipt(text, text, bigint) from public;
-- next statement
grant execute on function pgfence.find_receipt(text, text, bigint) to pgfence_app, pgfence_auditor;
-- next statement
comment on function pgfence.find_receipt(text, text, bigint) is
    'Receipt of (resource, root, segment), or no row: not accepted as far as can be seen.';
