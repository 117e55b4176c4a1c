-- Whatever changes who may write makes the next segment go through every rule again.
create function pgfence._forget_verification()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgfence.fences as f set checked_hash = null where f.resource = new.resource and f.checked_hash is not null;
    return null;
end
$$;
revoke all on function pgfence._forget_verification() from public;
comment on function pgfence._forget_verification() is
    'Trigger: fence, lease or pause of a resource changes, so nothing that was found holds any more (R9).';

-- AFTER: where there is a BEFORE trigger for rows, PostgreSQL locks the row once more at every UPDATE.
create trigger forget_verification after update of highest_fence, issued_fence, current_lease, paused_because
    on pgfence.fences for each row execute function pgfence._forget_verification();
alter table pgfence.fences enable always trigger forget_verification;
