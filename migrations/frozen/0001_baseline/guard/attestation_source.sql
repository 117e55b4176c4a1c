-- Attestation is part of every admission (R25), and reading the catalog costs as much as all the rest.
-- What tells at once when nothing has changed is PostgreSQL's own plan cache: a plan is thrown away as
-- soon as a table or function that it names was altered, by any ALTER, GRANT, trigger, rule, child or
-- partition. So pgfence._guards_are_whole() consists of two expressions for each prefix, whose plans hold
-- the answer as a constant. The one names the tables of the prefix (constants of type oid count), the
-- other their guard functions (in a branch that is never taken). The first expression of all does the
-- same for the list of tables. One change is announced to nobody, so it is looked for: a table that
-- became the child of a table without columns.
--
-- A session hears of changes when it takes a lock that it does not hold. Hence the call of
-- pg_relation_is_updatable before this function is even looked up: it locks what is no relation, so that
-- no client can hold the lock already, and unlocks it.
create function pgfence.attestation_source()
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select format($body$
begin
    if not pgfence._tables_when_planned('pgfence.protected_tables'::regclass, %L) then
        return false;
    end if;%s
    return true;
end
$body$, array(select p.protected_table::oid from pgfence.protected_tables as p order by p.protected_table::oid),
            string_agg(b.branch, '' order by b.literal_prefix))
        from (
            select p.literal_prefix, format($branch$
    if p_resource ^@ %1$L then
        if not pgfence._guards_when_planned(%1$L, array[%2$s]) then
            return false;
        elsif exists (select from pg_inherits as i where i.inhrelid in (%2$s))
              or not (case when true then pgfence._guards_when_planned(%1$L, '{}') else %3$s end) then
            return false;
        end if;
    end if;$branch$,
                p.literal_prefix,
                string_agg(format('oid %L', p.protected_table::oid), ', ' order by p.guard_id),
                string_agg(format('pgfence._guard_%s() is null', p.guard_id), ' and ' order by p.guard_id)) as branch
            from pgfence.protected_tables as p
            group by p.literal_prefix
        ) as b
    );
end
$$;
-- next statement
revoke all on function pgfence.attestation_source() from public;
-- next statement
grant execute on function pgfence.attestation_source() to pgfence_auditor;
-- next statement
comment on function pgfence.attestation_source() is
    'Body that pgfence._guards_are_whole() must have for the tables that are protected now (R25).';
