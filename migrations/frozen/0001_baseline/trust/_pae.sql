-- PASETO's pre-authentication encoding: the number of pieces, then each piece after its length,
-- all as 64-bit little-endian integers. NULL if a piece is NULL.
create function pgfence._pae(p_pieces bytea[])
returns bytea
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_length bytea := int8send(cardinality(p_pieces));
    v_pae    bytea;
    v_piece  bytea;
begin
    v_pae := substr(v_length, 8, 1) || substr(v_length, 7, 1) || decode('000000000000', 'hex');
    foreach v_piece in array p_pieces loop
        v_length := int8send(length(v_piece));
        v_pae := v_pae || substr(v_length, 8, 1) || substr(v_length, 7, 1) || substr(v_length, 6, 1)
                       || substr(v_length, 5, 1) || decode('00000000', 'hex') || v_piece;
    end loop;
    return v_pae;
end
$$;
-- next statement
revoke all on function pgfence._pae(bytea[]) from public;
-- next statement
comment on function pgfence._pae(bytea[]) is
    'PASETO pre-authentication encoding of the pieces; NULL if a piece is NULL.';
