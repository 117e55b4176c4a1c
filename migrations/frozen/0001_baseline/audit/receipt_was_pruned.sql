-- Whether the segment of an operation was accepted and its receipt pruned since. Ask it after find_receipt()
-- has found none: true means that nothing can be said of what the segment did, and that it must not be
-- taken for one that was never applied (R45).
create function pgfence.receipt_was_pruned(p_resource text, p_operation_root text, p_segment_seq bigint)
returns boolean
language sql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select exists (
        select from pgfence.operations as o
         where o.resource = p_resource and o.operation_root = p_operation_root
           and p_segment_seq between 1 and o.pruned_segments)
$$;
-- next statement
revoke all on function pgfence.receipt_was_pruned(text, text, bigint) from public;
-- next statement
grant execute on function pgfence.receipt_was_pruned(text, text, bigint) to pgfence_app, pgfence_auditor;
-- next statement
comment on function pgfence.receipt_was_pruned(text, text, bigint) is
    'Whether the receipt of (resource, root, segment) was pruned (R22, R45).';
