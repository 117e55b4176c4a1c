-- Opens the installation: a server that is too old is named, waiting for a lock is bounded, and
-- name look-up does not depend on the installer's search_path. schema/finish.sql puts it all back.
do $$
begin
    if current_setting('server_version_num')::integer < 140000 then
        raise exception 'pgfence needs PostgreSQL 14 or later, this server is %', current_setting('server_version')
            using errcode = 'feature_not_supported';
    end if;
    perform set_config('pgfence.installer_role', current_setting('role'), true);
    perform set_config('pgfence.installer_lock_timeout', current_setting('lock_timeout'), true);
    perform set_config('pgfence.installer_search_path', current_setting('search_path'), true);
end
$$;
-- next statement
set local lock_timeout = '5s';
-- next statement
set local search_path = pg_catalog, pg_temp;
