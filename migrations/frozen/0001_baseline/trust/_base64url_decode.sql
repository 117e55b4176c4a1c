-- The bytes of canonical base64url without padding; NULL for any other text (R3), never an error.
-- Two texts never give the same bytes: what was read is encoded again and compared.
create function pgfence._base64url_decode(p_text text)
returns bytea
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bytes bytea;
begin
    if p_text is null
       or p_text collate "C" !~ '^[A-Za-z0-9_-]*$'
       or length(p_text) % 4 = 1 then
        return null;
    end if;
    v_bytes := decode(translate(p_text, '-_', '+/') || repeat('=', (4 - length(p_text) % 4) % 4), 'base64');
    if p_text <> translate(encode(v_bytes, 'base64'), E'+/=\n', '-_') then
        return null;
    end if;
    return v_bytes;
end
$$;
-- next statement
revoke all on function pgfence._base64url_decode(text) from public;
-- next statement
comment on function pgfence._base64url_decode(text) is
    'The bytes of canonical base64url without padding; NULL for any other text, never an error.';
