-- From now on another coordinator says who may hold. Leases that are held go on to their ends; whoever
-- asks comes by way of the new one. Every fence lies above every one that was ever issued, which this
-- database must know (R37). Without rising tokens the registry's own sequence must do (R40).
create function pgfence_registry.switch_coordinator(
    p_coordinator text, p_rising_tokens boolean, p_registry_mints boolean default false, p_reason text default ''
)
returns table (term bigint, coordinator text, coordinator_before text, above bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_configuration pgfence.configuration;
begin
    perform pgfence._owner_only();
    if p_coordinator is null or not pgfence._is_identifier(p_coordinator) or p_rising_tokens is null
       or p_registry_mints is null or p_reason is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'switch_coordinator: an argument is NULL or not an ID',
            'Pass the coordinator''s name, and whether its tokens rise; the reason may be empty.', 'R37');
    end if;
    if not p_rising_tokens and not p_registry_mints then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('%s gives no token that rises, so it cannot say which owner is the later one', p_coordinator),
            'Let it choose a candidate, and the registry mint the fence from its own sequence: --registry-mints', 'R40');
    end if;
    lock table pgfence_registry.terms in share row exclusive mode;
    select c.* into strict v_configuration from pgfence.configuration as c;
    if not pgfence._is_recorded_database(v_configuration) then
        perform pgfence._raise('REBIND_REQUIRED',
            'this database was promoted, restored or copied: the highest fence that was issued is not known',
            'Let an owner acquire first, or run: pgfence restored', 'R37');
    end if;
    coordinator_before := (pgfence_registry._current_term()).coordinator;
    insert into pgfence_registry.terms as t (term, coordinator, rising_tokens)
    select max(b.term) + 1, p_coordinator, p_rising_tokens from pgfence_registry.terms as b
    returning t.term, t.coordinator into term, coordinator;
    select greatest(v_configuration.fence_base, max(f.issued_fence), max(f.highest_fence)) into above
      from pgfence.fences as f;
    insert into pgfence.journal (action, reason, detail)
    values ('SWITCHED', p_reason, pg_catalog.jsonb_build_object('term', term, 'before', coordinator_before,
            'after', coordinator, 'rising_tokens', p_rising_tokens, 'above', above));
    return next;
end
$$;
-- next statement
revoke all on function pgfence_registry.switch_coordinator(text, boolean, boolean, text) from public;
-- next statement
comment on function pgfence_registry.switch_coordinator(text, boolean, boolean, text) is
    'Changes the coordinator; fences go on rising (R37, R40). Owner only. Raises PF301, PF107.';
