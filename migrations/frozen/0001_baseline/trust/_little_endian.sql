-- The number that bytes say, lowest byte first. Seven bytes at a time, as they fit a bigint.
create function pgfence._little_endian(p_bytes bytea)
returns numeric
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bytes  bytea := p_bytes || decode('000000000000', 'hex');
    v_number numeric := 0;
    i        integer := (length(p_bytes) - 1) / 7 * 7;
begin
    while i >= 0 loop
        v_number := v_number * 72057594037927936::numeric + (
            get_byte(v_bytes, i)::bigint
            | (get_byte(v_bytes, i + 1)::bigint << 8)
            | (get_byte(v_bytes, i + 2)::bigint << 16)
            | (get_byte(v_bytes, i + 3)::bigint << 24)
            | (get_byte(v_bytes, i + 4)::bigint << 32)
            | (get_byte(v_bytes, i + 5)::bigint << 40)
            | (get_byte(v_bytes, i + 6)::bigint << 48));
        i := i - 7;
    end loop;
    return v_number;
end
$$;
-- next statement
revoke all on function pgfence._little_endian(bytea) from public;
-- next statement
comment on function pgfence._little_endian(bytea) is
    'The non-negative number that the bytes say, lowest byte first.';
