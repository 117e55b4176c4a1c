-- Asks for a resource; asks again; keeps a waiter's place: always the same call with the same
-- arguments (R34). When the caller is at the head of the queue and the lease before it has ended,
-- it decides here, in its own session: the fence row lock, a higher fence, the new grant (R53).
create function pgfence_registry.request(
    p_request_id text, p_resource text, p_operation_class text, p_operation_root text, p_ttl_ms bigint,
    p_continues_root text default '', p_coordinator text default 'postgres'
)
returns pgfence_registry.answer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_caller constant text := pgfence_registry._caller();
    v_request pgfence_registry.requests;
    v_grant pgfence_registry.grants;
    v_answer pgfence_registry.answer;
    v_new boolean := false;
    v_rebound boolean;
    v_epoch_floor bigint;
    v_term pgfence_registry.terms;
begin
    perform pgfence_registry._check_request(v_caller, p_request_id, p_resource, p_operation_class, p_operation_root, p_ttl_ms,
                                            p_continues_root);
    v_rebound := pgfence_registry._rebind_database();
    select c.epoch_floor into strict v_epoch_floor from pgfence.configuration as c;
    select r.* into v_request from pgfence_registry.requests as r
     where r.workload = v_caller and r.request_id = p_request_id;
    if not found then
        insert into pgfence_registry.requests as r
            (workload, request_id, resource, operation_class, operation_root, continues_root, ttl_ms, asked_at, alive_until)
        values
            (v_caller, p_request_id, p_resource, p_operation_class, p_operation_root, p_continues_root, p_ttl_ms,
             pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp() + interval '5 seconds')
        on conflict (workload, request_id) do nothing;
        v_new := found;
    end if;
    -- A waiter that was silent for too long goes to the end of the queue. The row lock makes sure
    -- that what follows is decided on the request as it is now: granted or withdrawn meanwhile?
    update pgfence_registry.requests as r
       set asked_at = case when r.alive_until < pg_catalog.clock_timestamp() then pg_catalog.clock_timestamp()
                           else r.asked_at end,
           alive_until = pg_catalog.clock_timestamp() + interval '5 seconds'
     where r.workload = v_caller and r.request_id = p_request_id
    returning r.* into strict v_request;
    if (v_request.resource, v_request.operation_class, v_request.operation_root, v_request.continues_root, v_request.ttl_ms)
       is distinct from (p_resource, p_operation_class, p_operation_root, p_continues_root, p_ttl_ms) then
        perform pgfence._raise('REQUEST_CONFLICT',
            pg_catalog.format('request %s was made before, with other arguments', p_request_id),
            'Ask again with the same arguments, or use a new request ID.', 'R34',
            pg_catalog.jsonb_build_object('resource', v_request.resource, 'operation_class', v_request.operation_class,
                'operation_root', v_request.operation_root, 'ttl_ms', v_request.ttl_ms));
    end if;

    if v_request.state = 'GRANTED' then
        select g.* into strict v_grant from pgfence_registry.grants as g where g.lease = v_request.lease;
        v_answer := pgfence_registry._answer_of_grant(v_grant, true);
        if v_answer.state in ('HELD', 'SIGNING') and v_grant.issuer_epoch < v_epoch_floor then
            v_answer := pgfence_registry._revoked(v_answer);
        end if;
        -- A lease that ended before anybody signed the grant was nobody's, also when another request
        -- came after it: back to the place in the queue.
        if v_grant.token is not null or v_answer.state not in ('EXPIRED', 'SUPERSEDED') then
            return v_answer;
        end if;
        update pgfence_registry.requests as r set state = 'WAITING', lease = null
         where r.workload = v_caller and r.request_id = p_request_id
        returning r.* into strict v_request;
    elsif v_request.state = 'WITHDRAWN' then
        v_answer.state := 'WITHDRAWN';
        v_answer.request_id := p_request_id;
        v_answer.resource := p_resource;
        v_answer.ttl_ms := p_ttl_ms;
        return v_answer;
    end if;

    -- Who says whose turn it is? With a lock service a registry process must have seen the key there.
    v_term := pgfence_registry._current_term();
    if p_coordinator is distinct from v_term.coordinator then
        perform pgfence._raise('WRONG_COORDINATOR',
            pg_catalog.format('the coordinator of this registry is %s, and the request came by way of %s', v_term.coordinator,
                coalesce(p_coordinator, 'NULL')),
            'Connect with that one: pgfence.connect(dsn, coordinator=...).', 'R37',
            pg_catalog.jsonb_build_object('coordinator', v_term.coordinator));
    end if;
    if v_request.term <> v_term.term then
        update pgfence_registry.requests as r set term = v_term.term
         where r.workload = v_caller and r.request_id = p_request_id;
        perform pgfence_registry._forget_token(v_caller, p_request_id);
        select r.* into strict v_request from pgfence_registry.requests as r
         where r.workload = v_caller and r.request_id = p_request_id;
    end if;
    if v_term.coordinator <> 'postgres' and v_request.seen_at is null then
        perform pg_catalog.pg_notify('pgfence_sign', '');
        return pgfence_registry._wait(v_request, v_request.alive_until,
            pg_catalog.format('no registry process has seen that its key holds the resource at %s: does one run with '
                '--coordinator, and is it the same %1$s?', v_term.coordinator));
    end if;
    return pgfence_registry._decide(v_request, not v_new and not v_rebound);
end
$$;
revoke all on function pgfence_registry.request(text, text, text, text, bigint, text, text) from public;
grant execute on function pgfence_registry.request(text, text, text, text, bigint, text, text) to pgfence_app;
comment on function pgfence_registry.request(text, text, text, text, bigint, text, text) is
    'Asks for a grant, or asks again: WAIT, SIGNING, HELD with the token, or how it ended (R34 to R36). p_ttl_ms in milliseconds. Raises PF301, PF302, PF303, PF308, PF309, PF109 and PF110; needs READ COMMITTED.';
