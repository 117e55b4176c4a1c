-- SHA-256 as pgfence writes it: 64 lower-case hexadecimal digits.
create function pgfence._is_digest(p_text text)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return p_text is not null
       and octet_length(p_text) = 64
       and translate(p_text, '0123456789abcdef', '') = '';
end
$$;
-- next statement
revoke all on function pgfence._is_digest(text) from public;
-- next statement
comment on function pgfence._is_digest(text) is
    'Whether the text is 64 lower-case hexadecimal digits. False for NULL.';
