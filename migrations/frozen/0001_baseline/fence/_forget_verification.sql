-- Whatever changes who may write makes the next segment go through every rule again.
create function pgfence._forget_verification()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    new.checked_hash := null;
    return new;
end
$$;
-- next statement
revoke all on function pgfence._forget_verification() from public;
-- next statement
comment on function pgfence._forget_verification() is
    'Trigger: fence, lease or pause of a resource changes, so nothing that was found holds any more (R9).';
-- next statement
create trigger forget_verification before update of highest_fence, issued_fence, current_lease, paused_because
    on pgfence.fences for each row execute function pgfence._forget_verification();
-- next statement
alter table pgfence.fences enable always trigger forget_verification;
