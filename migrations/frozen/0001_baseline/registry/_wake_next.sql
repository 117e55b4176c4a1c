-- Wakes the live waiter at the head of a resource's queue, when this transaction commits.
create function pgfence_registry._wake_next(p_resource text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_next pgfence_registry.requests;
begin
    select r.* into v_next from pgfence_registry.requests as r
     where r.resource = p_resource and r.state = 'WAITING' and r.alive_until > pg_catalog.clock_timestamp()
       and (r.seen_at is not null or (pgfence_registry._current_term()).coordinator = 'postgres')
     order by r.asked_at, r.workload, r.request_id limit 1;
    if found then
        perform pg_catalog.pg_notify(pgfence_registry._wake_channel(v_next.workload, v_next.request_id), '');
    end if;
end
$$;
-- next statement
revoke all on function pgfence_registry._wake_next(text) from public;
-- next statement
comment on function pgfence_registry._wake_next(text) is 'NOTIFY to the waiter at the head of the queue (R36).';
