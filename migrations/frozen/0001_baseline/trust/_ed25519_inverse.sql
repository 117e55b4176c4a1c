-- 1 / p_number modulo 2^255-19, by Euclid's algorithm. p_number is from 1 to 2^255-20.
create function pgfence._ed25519_inverse(p_number numeric)
returns numeric
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_p constant numeric := 57896044618658097711785492504343953926634992332820282019728792003956564819949;
    v_a numeric := v_p;
    v_b numeric := p_number;
    v_s numeric := 0;
    v_t numeric := 1;
    v_q numeric;
    v_h numeric;
begin
    while v_b <> 0 loop
        v_q := div(v_a, v_b);
        v_h := v_a - v_q * v_b;
        v_a := v_b;
        v_b := v_h;
        v_h := v_s - v_q * v_t;
        v_s := v_t;
        v_t := v_h;
    end loop;
    return case when v_s < 0 then v_s + v_p else v_s end;
end
$$;
-- next statement
revoke all on function pgfence._ed25519_inverse(numeric) from public;
-- next statement
comment on function pgfence._ed25519_inverse(numeric) is
    'The inverse of a number from 1 to p-1 modulo p = 2^255-19.';
