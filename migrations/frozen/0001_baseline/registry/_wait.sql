-- The answer WAIT. It looks again when what it waits for may be over; at least once a second, which
-- keeps the waiter alive; at once only where it would otherwise sleep past the event.
create function pgfence_registry._wait(p_request pgfence_registry.requests, p_until timestamptz, p_reason text)
returns pgfence_registry.answer
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    v_answer pgfence_registry.answer;
begin
    v_answer.state := 'WAIT';
    v_answer.request_id := p_request.request_id;
    v_answer.resource := p_request.resource;
    v_answer.ttl_ms := p_request.ttl_ms;
    v_answer.look_again_ms := greatest(5, least(1000,
        pg_catalog.ceil(extract(epoch from p_until - pg_catalog.clock_timestamp()) * 1000)));
    v_answer.wake_channel := pgfence_registry._wake_channel(p_request.workload, p_request.request_id);
    v_answer.reason := p_reason;
    return v_answer;
end
$$;
-- next statement
revoke all on function pgfence_registry._wait(pgfence_registry.requests, timestamptz, text) from public;
-- next statement
comment on function pgfence_registry._wait(pgfence_registry.requests, timestamptz, text) is
    'The answer WAIT, with the time to look again in milliseconds (R36).';
