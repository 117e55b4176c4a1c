-- Whether every table that may hold rows of the resource has its guard, as far as plans remember it;
-- not true: look. pgfence._write_attestation writes it anew when the protected tables change.
create function pgfence._guards_are_whole(p_resource text)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return false;
end
$$;
revoke all on function pgfence._guards_are_whole(text) from public;
comment on function pgfence._guards_are_whole(text) is
    'True: no guard of a table that may hold rows of the resource has changed since it was found whole (R25).';
