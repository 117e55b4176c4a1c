-- Refuses whatever would lower an epoch or the fence base, or make the configuration be forgotten:
-- grants of before a restore must not become good again (R39).
create function pgfence._keep_floor_rising()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._raise('FENCE_LOWERED',
        case tg_op
            when 'UPDATE' then pg_catalog.format(
                'issuer epoch %s, lowest good epoch %s, fence base %s and proofs from %s cannot become %s, %s, %s and %s',
                old.issuer_epoch, old.epoch_floor, old.fence_base, old.proofs_from,
                new.issuer_epoch, new.epoch_floor, new.fence_base, new.proofs_from)
            else 'the configuration cannot be deleted: a forgotten floor lets grants of before a restore in'
        end,
        'Epochs, the fence base and the moment from which proofs count only rise.', 'R39');
    return null;
end
$$;
revoke all on function pgfence._keep_floor_rising() from public;
comment on function pgfence._keep_floor_rising() is
    'Trigger: raises PF205, epochs, the fence base and proofs_from never go down (R39).';

create trigger keep_floor_rising before update on pgfence.configuration
    for each row when (new.issuer_epoch < old.issuer_epoch or new.epoch_floor < old.epoch_floor
                       or new.fence_base < old.fence_base or new.proofs_from < old.proofs_from)
    execute function pgfence._keep_floor_rising();
create trigger keep_configuration before delete on pgfence.configuration
    for each row execute function pgfence._keep_floor_rising();
create trigger keep_configurations before truncate on pgfence.configuration
    for each statement execute function pgfence._keep_floor_rising();

alter table pgfence.configuration enable always trigger keep_floor_rising;
alter table pgfence.configuration enable always trigger keep_configuration;
alter table pgfence.configuration enable always trigger keep_configurations;
