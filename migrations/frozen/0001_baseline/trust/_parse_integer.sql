-- An integer as R1 allows it: 0 to 2^53-1, decimal, no sign, no leading zero, no point, no exponent.
create function pgfence._parse_integer(p_text text)
returns bigint
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number bigint;
begin
    if p_text is null
       or octet_length(p_text) not between 1 and 16
       or translate(p_text, '0123456789', '') <> ''
       or (substr(p_text, 1, 1) = '0' and p_text <> '0') then
        return null;
    end if;
    v_number := p_text::bigint;
    if v_number > 9007199254740991 then
        return null;
    end if;
    return v_number;
end
$$;
-- next statement
revoke all on function pgfence._parse_integer(text) from public;
-- next statement
comment on function pgfence._parse_integer(text) is
    'Reads a decimal integer 0 to 2^53-1 without sign or leading zero; NULL for any other text, never an error.';
