-- No ordinary SQL of the owner role's takes an entry back to shadow either, or forgets it (R29).
create function pgfence._keep_rollout()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'UPDATE' then
        if new.prefix = old.prefix and (new.shadow_since, new.shadow_by) is not distinct from (old.shadow_since, old.shadow_by)
           and (old.enforced_since is null
                or (new.enforced_since, new.enforced_by) is not distinct from (old.enforced_since, old.enforced_by)) then
            return new;
        end if;
    end if;
    perform pgfence._raise('ROLLOUT_REFUSED', 'the rollout goes from shadow to enforced, and never back',
        'pgfence.enforce() is the only change of an entry.', 'R29');
    return null;
end
$$;
-- next statement
revoke all on function pgfence._keep_rollout() from public;
-- next statement
comment on function pgfence._keep_rollout() is
    'Trigger: raises PF306 unless an entry goes from shadow to enforced (R29).';
-- next statement
create trigger keep_rollout before update or delete on pgfence.rollout
    for each row execute function pgfence._keep_rollout();
-- next statement
create trigger keep_rollout_whole before truncate on pgfence.rollout
    for each statement execute function pgfence._keep_rollout();
-- next statement
alter table pgfence.rollout enable always trigger keep_rollout;
-- next statement
alter table pgfence.rollout enable always trigger keep_rollout_whole;
