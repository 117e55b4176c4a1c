-- What a session is busy with in its transaction, for overdue_sessions() to see: pg_locks shows advisory
-- locks also while the rows that it wrote cannot be seen, and after a savepoint was released. All those
-- with one classid are marks of one name, so a client that takes some, which any may, takes none away; and
-- nobody ever waits for one.
create function pgfence_registry._mark(p_name text)
returns integer
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select pg_catalog.hashtext('pgfence ' || p_name)
$$;
revoke all on function pgfence_registry._mark(text) from public;
comment on function pgfence_registry._mark(text) is
    'First key of the advisory locks that show which sessions are busy with a new resource or a lease (R20).';
