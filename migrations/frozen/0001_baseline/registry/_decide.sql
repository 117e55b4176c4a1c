-- Decides whether a waiter gets the resource now, and mints if so (R35, R36, R53).
create function pgfence_registry._decide(p_request pgfence_registry.requests, p_may_wait boolean)
returns pgfence_registry.answer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before pgfence_registry.requests;
    v_current pgfence_registry.grants;
    v_fence pgfence.fences;
    v_now timestamptz;
    v_epoch_floor bigint;
    v_lock_timeout constant text := pg_catalog.current_setting('lock_timeout');
begin
    -- A lease of before a restore or promotion is of no more use to anyone: nobody waits for its end.
    select c.epoch_floor into strict v_epoch_floor from pgfence.configuration as c;

    -- Who stands before us in the queue? The dead are passed over, and so is whoever a coordinator that is
    -- not this table does not name.
    v_now := pg_catalog.clock_timestamp();
    select r.* into v_before from pgfence_registry.requests as r
     where r.resource = p_request.resource and r.state = 'WAITING' and r.alive_until > v_now
       and r.term = p_request.term and (r.seen_at is not null or p_request.seen_at is null)
       and (r.asked_at, r.workload, r.request_id) < (p_request.asked_at, p_request.workload, p_request.request_id)
     order by r.asked_at, r.workload, r.request_id limit 1;
    if found then
        return pgfence_registry._wait(p_request, v_before.alive_until, 'another request is before this one');
    end if;

    -- Is the lease before us over? Until then nobody touches the fence row.
    select g.* into v_current
      from pgfence.fences as f join pgfence_registry.grants as g on g.lease = f.current_lease
     where f.resource = p_request.resource;
    if found and v_current.lease_ends_at > v_now and v_current.issuer_epoch >= v_epoch_floor then
        return pgfence_registry._wait(p_request, v_current.lease_ends_at, 'the resource is held');
    end if;

    -- The fence row lock: we wait here for an open segment of the old owner. The first call does
    -- not, so that the request stands in the table and the registry sees who is kept waiting; nor does
    -- one that has just changed the configuration, which comes after fence rows in the lock order.
    loop
        select f.* into v_fence from pgfence.fences as f
         where f.resource = p_request.resource for no key update skip locked;
        exit when found;
        if not exists (select from pgfence.fences as f where f.resource = p_request.resource) then
            -- One at a time makes the row, and shows it by a mark; the others do not wait where nobody sees
            -- it, and give their marks back with the block.
            begin
                perform pgfence_registry._take_mark(p_request.resource);
                perform pg_catalog.set_config('lock_timeout', '10ms', true);
                insert into pgfence.fences (resource) values (p_request.resource) on conflict do nothing;
                perform pg_catalog.set_config('lock_timeout', v_lock_timeout, true);
            exception
                when lock_not_available then
                    return pgfence_registry._wait(p_request, v_now, 'a transaction on the resource is still open');
            end;
            continue;
        end if;
        if not p_may_wait then
            return pgfence_registry._wait(p_request, v_now, 'a transaction on the resource is still open');
        end if;
        select f.* into v_fence from pgfence.fences as f
         where f.resource = p_request.resource for no key update;
        exit when found;
    end loop;

    -- Whoever asks in a transaction that goes on holds up everybody else: not for long (R20).
    if pgfence._shadow_prefix(p_request.resource) is null then
        perform pgfence._limit_transaction(pg_catalog.clock_timestamp() + interval '5 seconds');
    end if;

    -- Lock order: fence row, then grant row. A locked grant row is a renewal in flight.
    v_now := pg_catalog.clock_timestamp();
    if v_fence.current_lease is not null then
        select g.* into v_current from pgfence_registry.grants as g
         where g.lease = v_fence.current_lease for update skip locked;
        if not found then
            return pgfence_registry._wait(p_request, v_now, 'the lease is being renewed');
        elsif v_current.lease_ends_at > v_now and v_current.issuer_epoch >= v_epoch_floor then
            return pgfence_registry._wait(p_request, v_current.lease_ends_at, 'the resource is held');
        end if;
        update pgfence_registry.grants as g set state = 'SUPERSEDED', ended_at = v_now
         where g.lease = v_current.lease;
    end if;
    -- Somebody with a later token was signed for since the key was seen, so it holds no more.
    if p_request.seen_at is not null and exists (
            select from pgfence_registry.backend_marks as m
             where m.resource = p_request.resource and m.term = p_request.term and m.mark >= p_request.backend_revision) then
        perform pgfence_registry._forget_token(p_request.workload, p_request.request_id);
        return pgfence_registry._wait(p_request, v_now, 'its key must be seen again');
    end if;
    return pgfence_registry._mint(p_request, v_fence, v_now);
end
$$;
-- next statement
revoke all on function pgfence_registry._decide(pgfence_registry.requests, boolean) from public;
-- next statement
comment on function pgfence_registry._decide(pgfence_registry.requests, boolean) is
    'WAIT, or a new grant for the waiter at the head of the queue (R35, R36).';
