-- Closes the installation: the role, lock_timeout and search_path that schema/begin.sql found.
do $$
begin
    perform set_config('role', current_setting('pgfence.installer_role'), true);
    perform set_config('lock_timeout', current_setting('pgfence.installer_lock_timeout'), true);
    perform set_config('search_path', current_setting('pgfence.installer_search_path'), true);
end
$$;
