-- Is this database a copy of the one that was guarded: promoted, restored, cloned? Then take note of
-- what it is now, end every grant of before by a new epoch, and mint from a base that another copy
-- will hardly share: it rises by a random 2^32 to 2^38 (R39).
create function pgfence_registry._rebind_database()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_configuration pgfence.configuration;
begin
    select c.* into strict v_configuration from pgfence.configuration as c;
    if pgfence._is_recorded_database(v_configuration) then
        return;
    end if;
    select c.* into strict v_configuration from pgfence.configuration as c for update;
    if pgfence._is_recorded_database(v_configuration) then
        return;
    end if;
    update pgfence.configuration as c
       set (system_identifier, timeline, database_oid)
               = (select i.system_identifier, i.timeline, i.database_oid from pgfence._database_identity() as i),
           issuer_epoch = greatest(c.issuer_epoch, c.epoch_floor, b.lowest_epoch) + 1,
           epoch_floor = greatest(c.issuer_epoch, c.epoch_floor, b.lowest_epoch) + 1,
           fence_base = greatest(c.fence_base, m.issued) + 4294967296
               + ('x' || pg_catalog.substr(pg_catalog.replace(pg_catalog.gen_random_uuid()::text, '-', ''), 1, 12))::bit(48)::bigint
                 % (274877906944 - 4294967296),
           version = c.version + 1
      from (select coalesce(max(t.lowest_epoch), 0) from pgfence.trust_bundles as t) as b (lowest_epoch),
           (select coalesce(max(greatest(f.issued_fence, f.highest_fence)), 0) from pgfence.fences as f) as m (issued);
end
$$;
-- next statement
revoke all on function pgfence_registry._rebind_database() from public;
-- next statement
comment on function pgfence_registry._rebind_database() is
    'After a promotion, restore or copy: records the new identity, raises issuer epoch, floor and fence base (R39).';
