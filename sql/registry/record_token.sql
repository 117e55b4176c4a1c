-- A registry process saw, by a linearizable read, that the key of a request holds its resource at the
-- coordinator, and with which token; p_mark is the mark as it was before that read. RECORDED: the
-- request may be decided. FENCE_REGRESSION: tokens have gone back, and the resource is paused (R37).
-- LOOK_AGAIN: something has changed meanwhile, or is changing. Never waits for a lock.
create function pgfence_registry.record_token(
    p_workload text, p_request_id text, p_term bigint, p_token bigint, p_mark bigint
)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_term constant pgfence_registry.terms := pgfence_registry._current_term();
    v_request pgfence_registry.requests;
    v_explanation text;
begin
    if p_workload is null or p_request_id is null or p_term is null or p_mark is null
       or p_token is null or p_token not between 0 and 9007199254740991 then
        perform pgfence._raise('INVALID_ARGUMENT', 'record_token: an argument is NULL or out of range',
            'Pass workload, request ID, term, token (0 to 2^53 - 1) and mark.', 'R37');
    end if;
    select r.* into v_request from pgfence_registry.requests as r
     where r.workload = p_workload and r.request_id = p_request_id and r.state = 'WAITING'
       and r.term = p_term and p_term = v_term.term for update skip locked;
    if not found then
        return 'LOOK_AGAIN';
    end if;
    if v_term.rising_tokens and p_token <= p_mark then
        perform from pgfence.fences as f where f.resource = v_request.resource for no key update skip locked;
        if not found then
            return 'LOOK_AGAIN';
        end if;
        v_explanation := pg_catalog.format(
            'FENCE_REGRESSION: %s gave token %s to request %s after token %s: it was put back to an earlier state',
            v_term.coordinator, p_token, p_request_id, p_mark);
        update pgfence.fences as f set paused_because = v_explanation where f.resource = v_request.resource;
        insert into pgfence.journal (action, resource, reason, detail)
        values ('REGRESSED', v_request.resource, '', pg_catalog.jsonb_build_object(
            'coordinator', v_term.coordinator, 'token', p_token, 'mark', p_mark,
            'workload', p_workload, 'request_id', p_request_id));
        perform pg_catalog.pg_notify(pgfence_registry._wake_channel(p_workload, p_request_id), '');
        return 'FENCE_REGRESSION';
    end if;
    -- Only one key holds a resource: what was seen of the others is over.
    perform pgfence_registry._forget_token(o.workload, o.request_id)
       from (select r.workload, r.request_id from pgfence_registry.requests as r
              where r.resource = v_request.resource and r.state = 'WAITING' and r.seen_at is not null
                and (r.workload, r.request_id) <> (p_workload, p_request_id) for update skip locked) as o;
    update pgfence_registry.requests as r set seen_at = pg_catalog.clock_timestamp(), backend_revision = p_token
     where r.workload = p_workload and r.request_id = p_request_id;
    perform pg_catalog.pg_notify(pgfence_registry._wake_channel(p_workload, p_request_id), '');
    return 'RECORDED';
end
$$;
revoke all on function pgfence_registry.record_token(text, text, bigint, bigint, bigint) from public;
grant execute on function pgfence_registry.record_token(text, text, bigint, bigint, bigint) to pgfence_registry;
comment on function pgfence_registry.record_token(text, text, bigint, bigint, bigint) is
    'Records the coordinator''s token of a request, or pauses the resource for a regression (R37). Raises PF301.';
