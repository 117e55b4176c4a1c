-- The half of protect that needs pgfence's rights: notes the table and writes its guard function.
-- Whoever calls it alone has a table without triggers, which refuses admission and nothing else.
-- What it writes does not depend on how the client quotes names.
create function pgfence.prepare_protection(p_table regclass, p_template text)
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
declare
    v_owner regrole;
    v_schema name;
    v_protection pgfence.protected_tables;
    v_source text;
    v_guard text;
    v_obstacle record;
    v_workload_role text;
begin
    select c.relowner, n.nspname into v_owner, v_schema
    from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    where c.oid = p_table;
    if not found then
        perform pgfence._raise('INVALID_ARGUMENT', 'the table is missing', 'Name a table: ''billing.invoices''.', 'R23');
    end if;
    if not pgfence._session_may_act_as(v_owner) then
        raise exception 'must be owner of table %', p_table using errcode = 'insufficient_privilege';
    end if;
    -- A workload that owns the table could drop the guard, or stop everybody by protecting its own (R26).
    select r.rolname into v_workload_role
    from pgfence.workload_logins as l join pg_roles as r on r.oid = l.role
    where pg_has_role(r.oid, v_owner, 'MEMBER') and not r.rolsuper
    limit 1;
    if found then
        perform pgfence._raise('UNPROTECTABLE',
            format('%s belongs to %s, and role %I, which acts for a workload, can act as its owner', p_table, v_owner, v_workload_role),
            'Give the table to a role that no workload logs in as.', 'R26');
    end if;
    if v_schema in ('pgfence', 'pgfence_registry', 'pg_catalog', 'information_schema', 'pg_toast') then
        perform pgfence._raise('UNPROTECTABLE', format('%s belongs to the system or to pgfence', p_table),
            'Protect a table of your own.', 'R23');
    end if;
    v_source := pgfence._guard_source(p_table, p_template);

    select * into v_protection from pgfence.protected_tables as p where p.protected_table = p_table;
    if v_protection.template <> p_template then
        perform pgfence._raise('UNPROTECTABLE',
            format('%s is protected with the template %s already', p_table, v_protection.template),
            format('Leases name resources by that template. If none is held, the owner runs in one transaction: '
                   'select pgfence.unprotect(%L); select pgfence.protect(%L, %L);', p_table, p_table, p_template), 'R23');
    end if;
    insert into pgfence.protected_tables as p (protected_table, template, literal_prefix, guard_source)
    values (p_table, p_template, split_part(p_template, '{', 1), v_source)
    on conflict (protected_table) do update set guard_source = excluded.guard_source
    returning p.* into v_protection;

    select g.relation, g.unprotectable,
           'Protect an ordinary permanent table without rules, parents and children, or a whole partitioned table at its top.'
               as hint
    into v_obstacle
    from pgfence.guards as g where g.protected_table = p_table and g.unprotectable is not null
    limit 1;
    if not found then
        select g.relation, 'is protected by itself' as unprotectable,
               format('Take that guard off first, as its owner: select pgfence.unprotect(%L);', g.relation) as hint
        into v_obstacle
        from pgfence.guards as g join pgfence.protected_tables as p on p.protected_table = g.relation
        where g.protected_table = p_table and g.relation <> p_table
        limit 1;
    end if;
    if found then
        perform pgfence._raise('UNPROTECTABLE', format('%s cannot be protected: %s %s', p_table, v_obstacle.relation,
            v_obstacle.unprotectable),
            v_obstacle.hint, 'R23', jsonb_build_object('table', p_table::text, 'relation', v_obstacle.relation::text));
    end if;

    v_guard := format('pgfence._guard_%s', v_protection.guard_id);
    execute format('create or replace function %s() returns trigger language plpgsql security definer '
                   'set search_path = pg_catalog, pg_temp as %L', v_guard, v_source);
    execute format('revoke all on function %s() from public', v_guard);
    execute format('comment on function %s() is %L', v_guard,
        'Guard of a protected table: raises PF201 for rows that are not admitted (R23). Written by pgfence.protect.');
    -- who attaches a partition later needs it, to clone the row trigger
    execute format('grant execute on function %s() to %s', v_guard, v_owner);
    return v_guard;
end
$$;
-- next statement
revoke all on function pgfence.prepare_protection(regclass, text) from public;
-- next statement
grant execute on function pgfence.prepare_protection(regclass, text) to pgfence_app;
-- next statement
comment on function pgfence.prepare_protection(regclass, text) is
    'Called by pgfence.protect. Raises PF301, PF304, and 42501 if the session user may not act as the table''s owner (R23).';
