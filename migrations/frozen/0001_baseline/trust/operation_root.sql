-- The name of one operation: SHA-256 over resource, class, request ID and the caller's arguments,
-- each in UTF-8, joined unambiguously (_pae). The client library computes the same.
create function pgfence.operation_root(
    p_resource text, p_operation_class text, p_request_id text, p_arguments text)
returns text
language plpgsql
immutable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not pgfence._is_identifier(p_resource)
       or not pgfence._is_identifier(p_operation_class)
       or not pgfence._is_identifier(p_request_id)
       or p_arguments is null then
        perform pgfence._raise('INVALID_ARGUMENT',
            'an operation root needs a resource, an operation class and a request ID that are canonical IDs, and arguments that are not NULL',
            'A canonical ID has 1 to 255 printable ASCII characters without space, double quote and backslash.', 'R1');
    end if;
    return 'sha256:' || encode(sha256(pgfence._pae(array[
        convert_to(p_resource, 'UTF8'), convert_to(p_operation_class, 'UTF8'),
        convert_to(p_request_id, 'UTF8'), convert_to(p_arguments, 'UTF8')])), 'hex');
end
$$;
-- next statement
revoke all on function pgfence.operation_root(text, text, text, text) from public;
-- next statement
grant execute on function pgfence.operation_root(text, text, text, text) to pgfence_app;
-- next statement
comment on function pgfence.operation_root(text, text, text, text) is
    'sha256: and the hexadecimal SHA-256 that names one operation. Raises PF301 for NULL or an ID that is not canonical.';
