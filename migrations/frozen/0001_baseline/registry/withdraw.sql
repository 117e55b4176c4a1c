-- A waiter gives up. A request that has its grant already is not withdrawn: its lease is released.
create function pgfence_registry.withdraw(p_request_id text)
returns pgfence_registry.answer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_caller constant text := pgfence_registry._caller();
    v_request pgfence_registry.requests;
    v_answer pgfence_registry.answer;
begin
    if p_request_id is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'withdraw: p_request_id is NULL', 'Pass the request ID.', 'R36');
    end if;
    update pgfence_registry.requests as r set state = 'WITHDRAWN'
     where r.workload = v_caller and r.request_id = p_request_id and r.state = 'WAITING'
    returning r.* into v_request;
    if found then
        perform pgfence_registry._wake_next(v_request.resource);
    else
        select r.* into v_request from pgfence_registry.requests as r
         where r.workload = v_caller and r.request_id = p_request_id;
        if v_request.state = 'GRANTED' then
            return pgfence_registry.release(v_request.lease);
        end if;
    end if;
    v_answer.state := coalesce(v_request.state, 'UNKNOWN');
    v_answer.request_id := p_request_id;
    v_answer.resource := v_request.resource;
    return v_answer;
end
$$;
-- next statement
revoke all on function pgfence_registry.withdraw(text) from public;
-- next statement
grant execute on function pgfence_registry.withdraw(text) to pgfence_app;
-- next statement
comment on function pgfence_registry.withdraw(text) is
    'Gives up a request: the waiter leaves the queue, a granted lease is released (R36). Raises PF301, PF302.';
