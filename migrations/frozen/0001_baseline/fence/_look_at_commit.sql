-- At COMMIT the lease is looked at once more, so that an owner whose lease ended while its
-- transaction was open does not commit (R19). While the transaction runs nobody else can change
-- the grant (they would need the fence row), so what is left to look at is the clock.
--
-- SET CONSTRAINTS IMMEDIATE would fire the trigger early, and a trigger cannot ask whether it is
-- deferred. So it probes: it updates its own row, which fires it again. If that happens at once
-- (deeper than the probe), the mode is IMMEDIATE: back to deferred, and look again later. If it
-- happens after the probe has returned, this is COMMIT (or PREPARE TRANSACTION).
create function pgfence._look_at_commit()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_late interval;
begin
    if new.commit_look = 0 then
        update pgfence.fences set commit_look = pg_catalog.pg_trigger_depth() where resource = new.resource;
    elsif pg_catalog.pg_trigger_depth() > new.commit_look then
        set constraints pgfence.look_at_commit deferred;
        update pgfence.fences set commit_look = 0 where resource = new.resource;
    else
        v_late := pg_catalog.clock_timestamp() - new.admitted_until;
        if v_late >= interval '0' then
            perform pgfence._raise('LEASE_ENDED',
                pg_catalog.format('the lease on %s ended %s ms ago, while this transaction was open', new.resource,
                       pg_catalog.ceil(extract(epoch from v_late) * 1000)),
                'Nothing was written. Acquire the resource again, and commit segments well within the lease.', 'R19',
                pg_catalog.jsonb_build_object('resource', new.resource, 'fence_token', new.highest_fence));
        end if;
    end if;
    return null;
end
$$;
-- next statement
revoke all on function pgfence._look_at_commit() from public;
-- next statement
comment on function pgfence._look_at_commit() is
    'Deferred constraint trigger on fences: raises PF203 when the lease ended before COMMIT (R19).';
-- next statement
create constraint trigger look_at_commit after update on pgfence.fences
    deferrable initially deferred
    for each row when (new.admitted_transaction is not null
                       and (new.admitted_transaction is distinct from old.admitted_transaction
                            or new.admitted_transaction_start is distinct from old.admitted_transaction_start
                            or new.commit_look <> old.commit_look))
    execute function pgfence._look_at_commit();
-- next statement
alter table pgfence.fences enable always trigger look_at_commit;
