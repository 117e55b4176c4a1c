-- Refuses a request that could never be granted, with what to change.
create function pgfence_registry._check_request(
    p_workload text, p_request_id text, p_resource text, p_operation_class text, p_operation_root text, p_ttl_ms bigint,
    p_continues_root text
)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_policy pgfence.policies;
    v_paused text;
    v_name text;
    v_value text;
begin
    if pg_catalog.current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        perform pgfence._raise('INVALID_ARGUMENT', 'request: a grant cannot be decided on an old snapshot',
            'Call it in READ COMMITTED, in a transaction of its own.', 'R36');
    end if;
    foreach v_name in array array['p_request_id', 'p_resource', 'p_operation_class'] loop
        v_value := case v_name when 'p_request_id' then p_request_id when 'p_resource' then p_resource
                               else p_operation_class end;
        if v_value is null or not pgfence._is_identifier(v_value) then
            perform pgfence._raise('INVALID_ARGUMENT', pg_catalog.format('request: %s %L is not an ID', v_name, v_value),
                'Use 1 to 255 printable ASCII characters without space, double quote or backslash.', 'R34');
        end if;
    end loop;
    if not pgfence._is_operation_root(p_operation_root)
       or (p_continues_root is distinct from '' and not pgfence._is_operation_root(p_continues_root)) then
        perform pgfence._raise('INVALID_ARGUMENT', 'request: an operation root is not sha256: and 64 hex digits',
            'pgfence.operation_root() computes one; p_continues_root may be empty.', 'R34');
    end if;
    v_policy := pgfence._policy_of(p_resource);
    if p_ttl_ms is null or p_ttl_ms < 100 or p_ttl_ms > v_policy.largest_ttl_ms then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('request: a lease of %s ms is out of range: %s allows 100 to %s ms',
                coalesce(p_ttl_ms::text, 'NULL'), p_resource, v_policy.largest_ttl_ms),
            pg_catalog.format('Ask for 100 to %s ms.', v_policy.largest_ttl_ms), 'R8');
    end if;
    if p_operation_class <> all (v_policy.operation_classes) then
        perform pgfence._raise('WRONG_OPERATION',
            pg_catalog.format('%s does not allow operation class %s', p_resource, p_operation_class),
            pg_catalog.format('Its policy allows: %s.', pg_catalog.array_to_string(v_policy.operation_classes, ', ')), 'R8');
    end if;
    if exists (select from pgfence_registry.requests as r
                where r.resource = p_resource and r.operation_root = p_operation_root
                  and (r.workload, r.request_id) <> (p_workload, p_request_id)) then
        perform pgfence._raise('REQUEST_CONFLICT',
            pg_catalog.format('request: the operation root was asked for on %s by another request', p_resource),
            'A root belongs to one request. Use a request ID of its own.', 'R11');
    end if;
    select f.paused_because into v_paused from pgfence.fences as f where f.resource = p_resource;
    if v_paused is not null then
        perform pgfence._raise('PAUSED', pg_catalog.format('%s is paused: %s', p_resource, v_paused),
            'An operator must look at why, and then run: pgfence resume', 'R37');
    end if;
end
$$;
-- next statement
revoke all on function pgfence_registry._check_request(text, text, text, text, text, bigint, text) from public;
-- next statement
comment on function pgfence_registry._check_request(text, text, text, text, text, bigint, text) is
    'Checks the arguments of request(). Raises PF301, PF303, PF109, PF110.';
