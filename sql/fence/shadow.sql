-- From here on what would be refused under the prefix is let through and noted (R28). Only before
-- anything under it was enforced (R29). On the safe side, all of this counts, where it is not in shadow
-- already: a fence (so a grant, receipt or refusal of the owner's), a request, a refusal on record, and a
-- protected table that may hold rows of it, because its guard has been refusing since protect.
create function pgfence.shadow(p_prefix text, p_reason text default '')
returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_entry pgfence.rollout;
    v_enforced text;
    v_attempt integer := 0;
begin
    perform pgfence._owner_only();
    perform pgfence._check_rollout('shadow', p_prefix, p_reason);
    select r.* into v_entry from pgfence.rollout as r where r.prefix = p_prefix and r.enforced_since is null;
    if found then
        return v_entry.shadow_since;
    end if;
    lock table pgfence.protected_tables in share mode;
    -- No resource is used for the first time before this has committed. Others wait behind a lock that
    -- is waited for: so it is tried again and again instead, for ten seconds.
    loop
        begin
            perform from pgfence.configuration as c for update nowait;
            exit;
        exception
            when lock_not_available then
                v_attempt := v_attempt + 1;
                if v_attempt = 100 then
                    raise;
                end if;
        end;
        perform pg_sleep(0.1);
    end loop;

    select u.what into v_enforced
      from (select format('prefix %L is enforced', r.prefix)
              from pgfence.rollout as r
             where r.enforced_since is not null and (starts_with(p_prefix, r.prefix) or starts_with(r.prefix, p_prefix))
            union all
            select format('table %s is protected', p.protected_table)
              from pgfence.protected_tables as p
             where (starts_with(p.literal_prefix, p_prefix) or starts_with(p_prefix, p.literal_prefix))
               and pgfence._shadow_prefix_of_table(p.protected_table) is null and pgfence._shadow_prefix(p_prefix) is null
            union all
            select format('resource %s is in use', o.resource)
              from (select f.resource from pgfence.fences as f
                    union all select q.resource from pgfence_registry.requests as q
                    union all select g.resource from pgfence_registry.grants as g
                    union all select n.resource from pgfence.refusals as n where not n.in_shadow) as o
             where starts_with(o.resource, p_prefix) and pgfence._shadow_prefix(o.resource) is null) as u (what)
     limit 1;
    if found then
        perform pgfence._raise('ROLLOUT_REFUSED',
            format('%L is not put in shadow: %s', p_prefix, v_enforced),
            'A prefix is put in shadow before anything under it is enforced, never back: before a table is protected, '
            'and before a lease is asked for.', 'R29', jsonb_build_object('prefix', p_prefix));
    end if;
    insert into pgfence.rollout as r (prefix, shadow_since, shadow_by)
    values (p_prefix, clock_timestamp(), session_user)
    returning r.* into v_entry;
    insert into pgfence.journal (action, resource, reason, detail)
    values ('SHADOWED', p_prefix, p_reason, jsonb_build_object('prefix', p_prefix));
    return v_entry.shadow_since;
end
$$;
revoke all on function pgfence.shadow(text, text) from public;
comment on function pgfence.shadow(text, text) is
    'Puts a prefix in shadow, and returns since when it is (R28, R29). Owner only. Raises PF301, PF306, 55P03.';
