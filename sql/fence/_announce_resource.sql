-- A resource that is used for the first time shows it by a lock that shadow() cannot pass: so nothing
-- becomes enforced between its look and its entry (R29). Once for each resource.
create function pgfence._announce_resource()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform from pgfence.configuration as c for key share;
    return new;
end
$$;
revoke all on function pgfence._announce_resource() from public;
comment on function pgfence._announce_resource() is
    'Trigger: a new fence row and a call of shadow() wait for each other (R29).';

create trigger announce_resource before insert on pgfence.fences
    for each row execute function pgfence._announce_resource();
alter table pgfence.fences enable always trigger announce_resource;
