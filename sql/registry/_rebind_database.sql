-- Is this database a copy of the one that was guarded: promoted, restored, cloned? Then take note of
-- what it is now, end every grant of before by a new epoch, and mint from a base that another copy
-- will hardly share: it rises by a random 2^32 to 2^38 (R39). Where the registry is elsewhere, who owns
-- what has not changed: then only what it signs from now on counts. With a reason, also where nothing
-- shows that it is a copy. True when it was done.
create function pgfence_registry._rebind_database(p_reason text default null, p_above bigint default 0)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before pgfence.configuration;
    v_after pgfence.configuration;
begin
    select c.* into strict v_before from pgfence.configuration as c;
    if p_reason is null and pgfence._is_recorded_database(v_before) then
        return false;
    end if;
    select c.* into strict v_before from pgfence.configuration as c for update;
    if p_reason is null and pgfence._is_recorded_database(v_before) then
        return false;
    end if;
    -- Every other request waits for this transaction: not for long (R20).
    if p_reason is null and pgfence._shadow_prefix('') is null then
        perform pgfence._limit_transaction(pg_catalog.clock_timestamp() + interval '5 seconds');
    end if;
    update pgfence.configuration as c
       set (system_identifier, timeline, database_oid)
               = (select i.system_identifier, i.timeline, i.database_oid from pgfence._database_identity() as i),
           audience = coalesce(c.audience, (select b.audience from pgfence.trust_bundles as b order by b.version desc limit 1)),
           proofs_from = case when c.registry_is_local then c.proofs_from
                              else greatest(c.proofs_from, pg_catalog.clock_timestamp()) end,
           issuer_epoch = case when c.registry_is_local then k.epoch + 1 else c.issuer_epoch end,
           epoch_floor = case when c.registry_is_local then k.epoch + 1 else c.epoch_floor end,
           fence_base = case when c.registry_is_local then greatest(c.fence_base, k.fence_token, p_above) + 4294967296
               + ('x' || pg_catalog.substr(pg_catalog.replace(pg_catalog.gen_random_uuid()::text, '-', ''), 1, 12))::bit(48)::bigint
                 % (274877906944 - 4294967296) else c.fence_base end
      from (select greatest(max(g.issuer_epoch), (select max(b.lowest_epoch) from pgfence.trust_bundles as b),
                            v_before.issuer_epoch, v_before.epoch_floor) as epoch,
                   max(greatest(f.issued_fence, f.highest_fence)) as fence_token
              from pgfence.fences as f left join pgfence_registry.grants as g on g.lease = f.current_lease) as k
    returning c.* into strict v_after;
    insert into pgfence.journal (action, reason, detail)
    select case when p_reason is null then 'REBOUND' else 'RESTORED' end, coalesce(p_reason, ''),
           pg_catalog.jsonb_object_agg(s.at, pg_catalog.jsonb_build_object(
               'system_identifier', ((s.c).system_identifier)::text, 'timeline', (s.c).timeline,
               'database_oid', (s.c).database_oid::bigint, 'issuer_epoch', (s.c).issuer_epoch,
               'fence_base', (s.c).fence_base, 'proofs_from', (s.c).proofs_from::text))
      from (values ('before', v_before), ('after', v_after)) as s (at, c);
    raise log 'pgfence rebound: session_role=% timeline=% before=% issuer_epoch=% fence_base=%',
        pg_catalog.quote_ident(session_user), v_after.timeline, v_before.timeline, v_after.issuer_epoch, v_after.fence_base;
    return true;
end
$$;
revoke all on function pgfence_registry._rebind_database(text, bigint) from public;
comment on function pgfence_registry._rebind_database(text, bigint) is
    'After a promotion, restore or copy: records the new identity, raises issuer epoch, floor and fence base, or with a registry elsewhere proofs_from, and says so in the journal (R39).';
