-- Whether p_signature is the Ed25519 signature of p_message by p_public_key, strictly (RFC 8032
-- without its freedoms): 64 bytes, S below the group order, and R equal byte for byte to the encoding
-- of S * B - k * A. That sum is 64 additions of precomputed points, one for each byte of S and of k.
-- The key must have been installed (_ed25519_install_key); an absent or incomplete table is an error,
-- never a good signature.
create function pgfence._ed25519_verify(p_public_key bytea, p_message bytea, p_signature bytea)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_p constant numeric := 57896044618658097711785492504343953926634992332820282019728792003956564819949;
    -- 1 / p. n - trunc(trunc(n, -76) * v_1_p) * p is n modulo p, give or take p; cheaper than mod()
    v_1_p constant numeric := 0.000000000000000000000000000000000000000000000000000000000000000000000000000017272337110188889250772703725600799142232000728872562770047406940337183606330522;
    v_order constant numeric := 7237005577332262213973186563042994240857116359379907606001950938285454250989;
    v_2_56 constant numeric := 72057594037927936;
    v_key_id integer;
    v_s bytea;
    v_r numeric;        -- y of R as the signature has it
    v_k numeric;
    v_limbs bigint[];   -- k in pieces of seven bytes
    v_count integer := 0;
    v_add record;
    x numeric := 0;     -- the sum so far, in extended coordinates
    y numeric := 1;
    z numeric := 1;
    t numeric := 0;
    a numeric;
    b numeric;
    c numeric;
    e numeric;
    f numeric;
    g numeric;
    h numeric;
begin
    if p_public_key is null or p_message is null or p_signature is null or length(p_signature) <> 64 then
        return false;
    end if;
    v_s := substr(p_signature, 33, 32);
    if pgfence._little_endian(v_s) >= v_order then
        return false;
    end if;
    v_r := pgfence._little_endian(
        set_byte(substr(p_signature, 1, 32), 31, get_byte(p_signature, 31) & 127));
    if v_r >= v_p then
        return false;
    end if;
    select k.key_id into v_key_id from pgfence.ed25519_keys k where k.public_key = p_public_key;

    v_k := mod(pgfence._little_endian(sha512(substr(p_signature, 1, 32) || p_public_key || p_message)), v_order);
    for i in 1 .. 5 loop
        v_limbs[i] := mod(v_k, v_2_56);
        v_k := div(v_k, v_2_56);
    end loop;

    for v_add in
        select p.y_plus_x, p.y_less_x, p.xy2d
        from generate_series(0, 31) as w
        join pgfence.ed25519_points p on p.key_id = 0 and p.slot = 256 * w + get_byte(v_s, w)
        union all
        select p.y_plus_x, p.y_less_x, p.xy2d
        from generate_series(0, 31) as w
        join pgfence.ed25519_points p
            on p.key_id = v_key_id and p.slot = 256 * w + ((v_limbs[w / 7 + 1] >> (w % 7 * 8)) & 255)::integer
    loop
        v_count := v_count + 1;
        a := (y - x) * v_add.y_less_x;
        a := a - trunc(trunc(a, -76) * v_1_p) * v_p;
        b := (y + x) * v_add.y_plus_x;
        b := b - trunc(trunc(b, -76) * v_1_p) * v_p;
        c := t * v_add.xy2d;
        c := c - trunc(trunc(c, -76) * v_1_p) * v_p;
        e := b - a;
        f := z + z - c;
        g := z + z + c;
        h := b + a;
        x := e * f;
        x := x - trunc(trunc(x, -76) * v_1_p) * v_p;
        y := g * h;
        y := y - trunc(trunc(y, -76) * v_1_p) * v_p;
        z := f * g;
        z := z - trunc(trunc(z, -76) * v_1_p) * v_p;
        t := e * h;
        t := t - trunc(trunc(t, -76) * v_1_p) * v_p;
    end loop;
    if v_count <> 64 then
        raise exception using
            errcode = 'data_corrupted',
            message = 'the table of multiples of an Ed25519 key is absent or incomplete',
            detail = json_build_object('publicKey', encode(p_public_key, 'hex'), 'rows', v_count)::text,
            hint = 'Restore pgfence.ed25519_keys and pgfence.ed25519_points together with pgfence.trust_keys.',
            constraint = 'R2';
    end if;

    -- compare y / z without dividing, then divide once for the sign of x
    if mod(v_r * z - y, v_p) <> 0 then
        return false;
    end if;
    x := mod(x * pgfence._ed25519_inverse(mod(mod(z, v_p) + v_p, v_p)), v_p);
    if x < 0 then
        x := x + v_p;
    end if;
    return mod(x, 2) = get_byte(p_signature, 31) >> 7;
end
$$;
-- next statement
revoke all on function pgfence._ed25519_verify(bytea, bytea, bytea) from public;
-- next statement
comment on function pgfence._ed25519_verify(bytea, bytea, bytea) is
    'Strict Ed25519 verification with the installed key''s comb table. False for a bad signature; raises XX001 if the table is absent or incomplete.';
