-- The half of unprotect that needs pgfence's rights: drops the guard function, and with it every
-- trigger that calls it, also on partitions that were detached, and the record of the table. A workload
-- may not, even where it has come to own the table: without the record nothing tells that the guard
-- is gone. The record of a dropped table is left to members of pgfence_owner.
create function pgfence.finish_unprotection(p_table regclass)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_guard_id bigint;
begin
    if p_table is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'the table is missing', 'Name a table: ''billing.invoices''.', 'R26');
    end if;
    if not pgfence._session_may_act_as(
        coalesce((select c.relowner from pg_class as c where c.oid = p_table), 'pgfence_owner'::regrole))
    then
        raise exception 'must be owner of table %', p_table using errcode = 'insufficient_privilege';
    end if;
    if exists (select from pgfence.workload_logins as l where l.role_name = session_user) then
        raise exception 'role % acts for a workload: it may not take the guard off %', session_user, p_table
            using errcode = 'insufficient_privilege', hint = 'Log in as a role that acts for no workload.';
    end if;
    delete from pgfence.protected_tables as p where p.protected_table = p_table returning p.guard_id into v_guard_id;
    if not found then
        perform pgfence._raise('INVALID_ARGUMENT', format('%s is not protected', p_table),
            'pgfence.guards lists the tables that are.', 'R26');
    end if;
    execute format('drop function if exists pgfence._guard_%s() cascade', v_guard_id);
end
$$;
revoke all on function pgfence.finish_unprotection(regclass) from public;
grant execute on function pgfence.finish_unprotection(regclass) to pgfence_app;
comment on function pgfence.finish_unprotection(regclass) is
    'Called by pgfence.unprotect. Raises PF301, and 42501 if the session user acts for a workload or may not act as the table''s owner (R26).';
