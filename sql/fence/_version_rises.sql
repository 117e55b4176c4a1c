-- Every change of the configuration has a version of its own, so that what was found by an earlier one
-- is not believed any more (R9).
create function pgfence._version_rises()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    new.version := old.version + 1;
    return new;
end
$$;
revoke all on function pgfence._version_rises() from public;
comment on function pgfence._version_rises() is 'Trigger: gives each change of the configuration the next version (R9).';

create trigger version_rises before update on pgfence.configuration
    for each row execute function pgfence._version_rises();
alter table pgfence.configuration enable always trigger version_rises;
