-- Sets the policy of a prefix and begins a new generation, which ends the grants of the old one. Where the
-- registry is elsewhere, it must be the same generation in both databases: p_generation says which.
create function pgfence.set_policy(
    p_prefix text, p_operation_classes text[], p_largest_step bigint default 1099511627776,
    p_largest_ttl_ms bigint default 86400000, p_generation bigint default null
)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_generation bigint;
    v_class text;
begin
    perform pgfence._owner_only();
    if p_prefix is null or (p_prefix <> '' and not pgfence._is_identifier(p_prefix)) then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('policy prefix %L is not the beginning of a resource ID', p_prefix),
            'Use printable ASCII without space, double quote or backslash; the empty prefix rules all.', 'R8');
    end if;
    foreach v_class in array coalesce(p_operation_classes, '{}') loop
        if v_class is null or not pgfence._is_identifier(v_class) then
            perform pgfence._raise('INVALID_ARGUMENT',
                pg_catalog.format('operation class %L is not an ID', v_class),
                'Use printable ASCII without space, double quote or backslash.', 'R8');
        end if;
    end loop;
    if p_largest_step is null or p_largest_step not between 1 and 9007199254740991
       or p_largest_ttl_ms is null or p_largest_ttl_ms not between 100 and 9007199254740991 then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('policy of %L: a step of %s or a lease of %s ms is out of range', p_prefix,
                coalesce(p_largest_step::text, 'NULL'), coalesce(p_largest_ttl_ms::text, 'NULL')),
            'The largest step is 1 to 2^53 - 1, the longest lease 100 to 2^53 - 1 ms.', 'R8');
    end if;
    -- One after the other: two that begin generations at once must not begin the same one.
    update pgfence.configuration set version = version + 1;
    -- Above every generation that ever ruled these resources, also through a shorter prefix: a
    -- grant of an old generation must not become good again because a new prefix starts at 1.
    select max(p.generation) + 1 into v_generation from pgfence.policies as p;
    if (p_generation between v_generation and 9007199254740990) is false then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('policy of %L: generation %s is out of range', p_prefix, p_generation),
            pg_catalog.format('The next one is %s; generations only rise.', v_generation), 'R8');
    end if;
    v_generation := coalesce(p_generation, v_generation);
    insert into pgfence.policies as p (prefix, generation, operation_classes, largest_step, largest_ttl_ms)
    values (p_prefix, v_generation, p_operation_classes, p_largest_step, p_largest_ttl_ms)
    on conflict (prefix) do update
       set generation = excluded.generation, operation_classes = excluded.operation_classes,
           largest_step = excluded.largest_step, largest_ttl_ms = excluded.largest_ttl_ms;
    return v_generation;
end
$$;
revoke all on function pgfence.set_policy(text, text[], bigint, bigint, bigint) from public;
comment on function pgfence.set_policy(text, text[], bigint, bigint, bigint) is
    'Sets the policy of a prefix and returns its new generation (R8). Owner only. Raises PF301.';
