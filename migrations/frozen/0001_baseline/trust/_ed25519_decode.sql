-- The point (x, y) that a public key encodes (RFC 8032, 5.1.3), or NULL if it is not the canonical
-- encoding of a point of the curve, or a point of small order, for which signatures prove nothing.
create function pgfence._ed25519_decode(p_public_key bytea)
returns numeric[]
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_p constant numeric := 57896044618658097711785492504343953926634992332820282019728792003956564819949;
    v_d constant numeric := 37095705934669439343138083508754565189542113879843219016388785533085940283555;
    v_root_of_minus_1 constant numeric := 19681161376707505956807079304988542015446066515923890162744021073123829784752;
    -- y of the eight points whose order divides 8
    v_small constant numeric[] := array[
        0, 1, v_p - 1,
        2707385501144840649318225287225658788936804267575313519463743609750303402022,
        v_p - 2707385501144840649318225287225658788936804267575313519463743609750303402022];
    v_sign integer;
    v_x numeric;
    v_y numeric;
    v_u numeric;
    v_v numeric;
    v_w numeric;
    v_t numeric;
begin
    if p_public_key is null or length(p_public_key) <> 32 then
        return null;
    end if;
    v_sign := get_byte(p_public_key, 31) >> 7;
    v_y := pgfence._little_endian(set_byte(p_public_key, 31, get_byte(p_public_key, 31) & 127));
    if v_y >= v_p or v_y = any (v_small) then
        return null;
    end if;
    -- x^2 = u / v; the candidate is u v^3 (u v^7)^((p - 5) / 8), where (p - 5) / 8 = 2^252 - 3
    v_u := mod(v_y * v_y - 1, v_p);
    v_v := mod(v_d * mod(v_y * v_y, v_p) + 1, v_p);
    v_x := mod(v_u * mod(v_v * mod(v_v * v_v, v_p), v_p), v_p);
    v_w := mod(v_x * mod(mod(v_v * v_v, v_p) * mod(v_v * v_v, v_p), v_p), v_p);
    v_t := v_w;
    for i in 1 .. 249 loop
        v_t := mod(mod(v_t * v_t, v_p) * v_w, v_p);
    end loop;
    v_t := mod(v_t * v_t, v_p);
    v_t := mod(mod(v_t * v_t, v_p) * v_w, v_p);
    v_x := mod(v_x * v_t, v_p);
    v_t := mod(v_v * mod(v_x * v_x, v_p), v_p);
    if v_t <> v_u then
        if v_t <> v_p - v_u then
            return null;
        end if;
        v_x := mod(v_x * v_root_of_minus_1, v_p);
    end if;
    if mod(v_x, 2) <> v_sign then
        v_x := v_p - v_x;
    end if;
    return array[v_x, v_y];
end
$$;
-- next statement
revoke all on function pgfence._ed25519_decode(bytea) from public;
-- next statement
comment on function pgfence._ed25519_decode(bytea) is
    'The point of a canonical Ed25519 public key as array[x, y]; NULL for anything else and for points of small order.';
