-- How the session was authenticated, as method:identity. A client cannot choose it. Null before
-- PostgreSQL 16, and where pg_hba.conf asks for nothing (trust).
create function pgfence._system_user()
returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('server_version_num')::integer < 160000 then
        return null;
    end if;
    return pg_catalog.system_user();
end
$$;
-- next statement
revoke all on function pgfence._system_user() from public;
-- next statement
comment on function pgfence._system_user() is 'SYSTEM_USER of the session, or null (R6).';
