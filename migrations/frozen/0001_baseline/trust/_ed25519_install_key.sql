-- Fills ed25519_points for a public key, and first of all for the base point. Does nothing if it is
-- there. False if the bytes are no usable public key (_ed25519_decode). Takes about 0.3 s a key.
create function pgfence._ed25519_install_key(p_public_key bytea)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_p    constant numeric := 57896044618658097711785492504343953926634992332820282019728792003956564819949;
    v_2d   constant numeric := 16295367250680780974490674513165176452449235426866156013048779062215315747161;
    v_base constant bytea := decode('58' || repeat('66', 30) || 'e6', 'hex');
    v_point  numeric[] := pgfence._ed25519_decode(p_public_key);
    v_key_id integer;
    v_x numeric;
    v_y numeric;
    v_plus numeric;     -- y + x, y - x and 2dxy of the point that a window adds up
    v_less numeric;
    v_xy2d numeric;
    x numeric;          -- the sum so far, in extended coordinates
    y numeric;
    z numeric;
    t numeric;
    a numeric;
    b numeric;
    c numeric;
    v_xs numeric[];
    v_ys numeric[];
    v_zs numeric[];
    v_products numeric[];
    v_inverse numeric;
    v_pluses numeric[];
    v_lesses numeric[];
    v_xy2ds numeric[];
begin
    if v_point is null then
        return false;
    end if;
    lock table pgfence.ed25519_keys in share row exclusive mode;
    if exists (select from pgfence.ed25519_keys k where k.public_key = p_public_key) then
        return true;
    end if;
    if p_public_key = v_base then
        v_key_id := 0;
    else
        perform pgfence._ed25519_install_key(v_base);
        v_key_id := (select max(k.key_id) + 1 from pgfence.ed25519_keys k);
    end if;
    insert into pgfence.ed25519_keys (key_id, public_key) values (v_key_id, p_public_key);

    v_x := v_p - v_point[1];
    v_y := v_point[2];
    for w in 0 .. 31 loop
        v_plus := mod(v_y + v_x, v_p);
        v_less := mod(v_y - v_x + v_p, v_p);
        v_xy2d := mod(v_2d * mod(v_x * v_y, v_p), v_p);
        -- 1 to 256 times the point; the addition formulas hold for doubling and for zero as well
        x := 0;
        y := 1;
        z := 1;
        t := 0;
        v_products := array[1];
        for n in 1 .. 256 loop
            a := mod((y - x) * v_less, v_p);
            b := mod((y + x) * v_plus, v_p);
            c := mod(t * v_xy2d, v_p);
            x := mod((b - a) * (z + z - c), v_p);
            y := mod((z + z + c) * (b + a), v_p);
            t := mod((b - a) * (b + a), v_p);
            z := mod((z + z - c) * (z + z + c), v_p);
            v_xs[n] := x;
            v_ys[n] := y;
            v_zs[n] := z;
            v_products[n + 1] := mod(v_products[n] * z, v_p);
        end loop;
        -- all z are inverted at once: the inverse of their product, taken apart from the end
        v_inverse := pgfence._ed25519_inverse(mod(v_products[257] + v_p, v_p));
        for n in reverse 256 .. 1 loop
            z := mod(v_inverse * v_products[n], v_p);
            v_inverse := mod(v_inverse * v_zs[n], v_p);
            x := mod(mod(v_xs[n] * z, v_p) + v_p, v_p);
            y := mod(mod(v_ys[n] * z, v_p) + v_p, v_p);
            if n = 256 then
                v_x := x;
                v_y := y;
            else
                v_pluses[n] := mod(y + x, v_p);
                v_lesses[n] := mod(y - x + v_p, v_p);
                v_xy2ds[n] := mod(v_2d * mod(x * y, v_p), v_p);
            end if;
        end loop;
        insert into pgfence.ed25519_points (key_id, slot, y_plus_x, y_less_x, xy2d)
        select v_key_id, 256 * w, 1, 1, 0
        union all
        select v_key_id, 256 * w + u.n, u.y_plus_x, u.y_less_x, u.xy2d
        from unnest(v_pluses, v_lesses, v_xy2ds) with ordinality as u (y_plus_x, y_less_x, xy2d, n);
    end loop;
    return true;
end
$$;
-- next statement
revoke all on function pgfence._ed25519_install_key(bytea) from public;
-- next statement
comment on function pgfence._ed25519_install_key(bytea) is
    'Computes the comb table of a public key, if it is not there yet; false if it is not a usable key.';
