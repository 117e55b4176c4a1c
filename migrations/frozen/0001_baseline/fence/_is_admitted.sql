-- Is the resource admitted in this very transaction? All three must match: a transaction ID alone
-- would be satisfied by restored rows after the counter fell (R24).
create function pgfence._is_admitted(p_fence pgfence.fences)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(p_fence.admitted_transaction = pg_catalog.pg_current_xact_id_if_assigned()
                    and p_fence.admitted_transaction_start = pg_catalog.transaction_timestamp()
                    and p_fence.admitted_backend = pg_catalog.pg_backend_pid(), false)
$$;
-- next statement
revoke all on function pgfence._is_admitted(pgfence.fences) from public;
-- next statement
comment on function pgfence._is_admitted(pgfence.fences) is
    'Whether this transaction admitted the resource of a fence row (R24).';
