-- An operation root: 'sha256:' and 64 lower-case hexadecimal digits.
create function pgfence._is_operation_root(p_text text)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return p_text is not null
       and substr(p_text, 1, 7) = 'sha256:'
       and pgfence._is_digest(substr(p_text, 8));
end
$$;
-- next statement
revoke all on function pgfence._is_operation_root(text) from public;
-- next statement
comment on function pgfence._is_operation_root(text) is
    'Whether the text is an operation root: sha256: and 64 lower-case hexadecimal digits. False for NULL.';
