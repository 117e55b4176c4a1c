-- What a session is busy with in its transaction, for overdue_sessions() to see: pg_locks shows advisory
-- locks also while the rows that it wrote cannot be seen, and after a savepoint was released. Nobody
-- ever waits for one, so a client that takes it, which any may, holds up nobody unseen.
create function pgfence_registry._mark(p_name text, out class integer, out number integer)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select 1885824357, pg_catalog.hashtext(p_name)
$$;
-- next statement
revoke all on function pgfence_registry._mark(text) from public;
-- next statement
comment on function pgfence_registry._mark(text) is
    'The advisory lock that shows which session is busy with a new resource or a lease (R20).';
