-- At COMMIT the lease is looked at once more, so that an owner whose lease ended while its
-- transaction was open does not commit (R19). While the transaction runs nobody else can change
-- the grant (they would need the fence row), so what is left to look at is the clock.
--
-- SET CONSTRAINTS IMMEDIATE would fire the trigger early, and a trigger cannot ask whether it is
-- deferred. So it probes: it updates its own row, which fires it again. If that happens at once
-- (deeper than the probe), the mode is IMMEDIATE: back to deferred, and look again later. If it
-- happens after the probe has returned, this is COMMIT (or PREPARE TRANSACTION).
--
-- Most often it need not probe, because PostgreSQL says what it is doing. A query of the one word COMMIT
-- is that. And while there is no query at all and no caller, an implicit transaction ends: SET
-- CONSTRAINTS is either the query, or a function on the stack.
create function pgfence._look_at_commit()
returns trigger
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_stack text;
    v_shadow_prefix text;
    v_grant pgfence._grant;
begin
    get diagnostics v_stack = pg_context;
    if pg_catalog.strpos(v_stack, E'\n') = 0
       and coalesce(pg_catalog.current_query(), 'COMMIT') in ('COMMIT', 'commit', 'COMMIT;', 'commit;') then
        null;
    elsif new.commit_look = 0 then
        update pgfence.fences set commit_look = pg_catalog.pg_trigger_depth() where resource = new.resource;
        return null;
    elsif pg_catalog.pg_trigger_depth() > new.commit_look then
        set constraints pgfence.look_at_commit deferred;
        update pgfence.fences set commit_look = 0 where resource = new.resource;
        return null;
    end if;
    if pg_catalog.clock_timestamp() >= new.admitted_until then
        v_shadow_prefix := pgfence._shadow_prefix(new.resource);
        if v_shadow_prefix is not null then
            v_grant.resource := new.resource;
            v_grant.fence_token := new.highest_fence;
            perform pgfence._record_refusal('LEASE_ENDED', null, v_grant, new.grant_digest, true, new.last_segment,
                                            v_shadow_prefix, null, true);
            return null;
        end if;
        perform pgfence._raise('LEASE_ENDED',
            pg_catalog.format('the lease on %s ended %s ms ago, while this transaction was open', new.resource,
                   pg_catalog.ceil(extract(epoch from pg_catalog.clock_timestamp() - new.admitted_until) * 1000)),
            'Nothing was written. Acquire the resource again, and commit segments well within the lease.', 'R19',
            pg_catalog.jsonb_build_object('resource', new.resource, 'fence_token', new.highest_fence));
    end if;
    return null;
end
$$;
revoke all on function pgfence._look_at_commit() from public;
comment on function pgfence._look_at_commit() is
    'Deferred constraint trigger on fences: raises PF203 when the lease ended before COMMIT (R19); in shadow it notes that and no more (R28).';

-- No WHEN: PostgreSQL would parse it again at every UPDATE.
create constraint trigger look_at_commit after update of commit_look on pgfence.fences
    deferrable initially deferred for each row execute function pgfence._look_at_commit();
alter table pgfence.fences enable always trigger look_at_commit;
