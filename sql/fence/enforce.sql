-- From here on the prefix is enforced, and never in shadow again (R29). Longer prefixes keep entries of
-- their own. A transaction that was let through before may still commit: `pgfence rollout enforce` waits
-- for it. An old snapshot ends in 40001, because the configuration has changed.
create function pgfence.enforce(p_prefix text, p_reason text default '')
returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_entry pgfence.rollout;
begin
    perform pgfence._owner_only();
    perform pgfence._check_rollout('enforce', p_prefix, p_reason);
    select r.* into v_entry from pgfence.rollout as r where r.prefix = p_prefix;
    if v_entry.enforced_since is not null then
        return v_entry.enforced_since;
    end if;
    insert into pgfence.rollout as r (prefix, enforced_since, enforced_by)
    values (p_prefix, clock_timestamp(), session_user)
    on conflict (prefix) do update set enforced_since = excluded.enforced_since, enforced_by = excluded.enforced_by
    returning r.* into v_entry;
    update pgfence.configuration set version = version + 1;
    insert into pgfence.journal (action, resource, reason, detail)
    values ('ENFORCED', p_prefix, p_reason,
            jsonb_build_object('prefix', p_prefix, 'shadow_since', v_entry.shadow_since));
    return v_entry.enforced_since;
end
$$;
revoke all on function pgfence.enforce(text, text) from public;
comment on function pgfence.enforce(text, text) is
    'Enforces a prefix from now on, and returns since when it is (R29). Owner only. Raises PF301.';
