-- Refuses coordinates that name no segment. The digest of the payload may be left out.
create function pgfence._check_coordinates(
    p_function text, p_resource text, p_operation_root text, p_segment_seq bigint, p_payload_digest text
)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if (pgfence._is_identifier(p_resource) and pgfence._is_operation_root(p_operation_root) and p_segment_seq >= 1
        and (p_payload_digest is null or pgfence._is_digest(p_payload_digest))) is not true then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('%s: resource %L, root %L, segment %s, payload %L do not name a segment', p_function, p_resource,
                p_operation_root, coalesce(p_segment_seq::text, 'NULL'), p_payload_digest),
            'Pass what MutationUnknownError carries; the SHA-256 of the payload, 64 hex digits, may be NULL.', 'R45');
    end if;
end
$$;
-- next statement
revoke all on function pgfence._check_coordinates(text, text, text, bigint, text) from public;
-- next statement
comment on function pgfence._check_coordinates(text, text, text, bigint, text) is
    'Checks what names a segment. Raises PF301 (R45).';
