-- Refuses whatever would lower a fence or make it be forgotten: R17 holds for the owner role too.
create function pgfence._keep_fence_rising()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgfence._raise('FENCE_LOWERED',
        case tg_op
            when 'UPDATE' then pg_catalog.format(
                'fence of %s cannot go from %s (minted %s) to %s (minted %s)', old.resource,
                old.highest_fence, old.issued_fence, new.highest_fence, new.issued_fence)
            when 'INSERT' then pg_catalog.format('%s cannot begin with fence %s (minted %s)', new.resource,
                new.highest_fence, new.issued_fence)
            else 'fences cannot be deleted: a forgotten fence lets stale owners in'
        end,
        'Fence tokens only rise. To go on after a restore, let owners acquire again.', 'R17');
    return null;
end
$$;
revoke all on function pgfence._keep_fence_rising() from public;
comment on function pgfence._keep_fence_rising() is 'Trigger: raises PF205, a fence never goes down (R17).';

-- Only where an UPDATE names these columns: PostgreSQL parses a WHEN, and a CHECK, again at every UPDATE.
create trigger keep_fence_rising after update of resource, highest_fence, issued_fence on pgfence.fences
    for each row when (new.highest_fence < old.highest_fence or new.issued_fence < old.issued_fence
                       or greatest(new.highest_fence, new.issued_fence) > 9007199254740991
                       or new.resource <> old.resource)
    execute function pgfence._keep_fence_rising();
create trigger keep_fence_in_range before insert on pgfence.fences
    for each row when (least(new.highest_fence, new.issued_fence) < 0
                       or greatest(new.highest_fence, new.issued_fence) > 9007199254740991)
    execute function pgfence._keep_fence_rising();
create trigger keep_fence before delete on pgfence.fences
    for each row execute function pgfence._keep_fence_rising();
create trigger keep_fences before truncate on pgfence.fences
    for each statement execute function pgfence._keep_fence_rising();

alter table pgfence.fences enable always trigger keep_fence_rising;
alter table pgfence.fences enable always trigger keep_fence_in_range;
alter table pgfence.fences enable always trigger keep_fence;
alter table pgfence.fences enable always trigger keep_fences;
