-- What a registry process saw of a request's key counts no more: the request waits, and its key must be
-- seen again.
create function pgfence_registry._forget_token(p_workload text, p_request_id text)
returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    update pgfence_registry.requests as r set state = 'WAITING', lease = null, seen_at = null, backend_revision = 0
     where r.workload = p_workload and r.request_id = p_request_id
$$;
-- next statement
revoke all on function pgfence_registry._forget_token(text, text) from public;
-- next statement
comment on function pgfence_registry._forget_token(text, text) is
    'The key of a request must be seen again before it is granted anything (R37).';
