-- Reads the document of a trust bundle, in the way of _parse_grant: 25 pieces between double quotes,
-- and 16 more for each key. What makes a bundle good in itself is looked at here: every key is usable,
-- named by its digest, in order of those names (so none comes twice or with two purposes), and there
-- are enough root keys to sign the next bundle. Who signed this one is not looked at.
create function pgfence._parse_bundle(p_document text)
returns pgfence._bundle
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_piece  text[];
    v_tail   integer;   -- pieces that the keys take
    v_bundle pgfence._bundle;
    v_key    pgfence._bundle_key;
    v_kid    text collate "C" := '';
    v_roots  integer := 0;
begin
    if p_document is null or octet_length(p_document) > 65536 then
        return null;
    end if;
    v_piece := string_to_array(p_document, '"');
    v_tail := cardinality(v_piece) - 25;
    if v_tail < 16 or v_tail % 16 <> 0 then
        return null;
    end if;
    v_bundle.audience       := v_piece[4];
    v_bundle.expires_at     := pgfence._parse_integer(btrim(v_piece[7], ':,'));
    v_bundle.issued_at      := pgfence._parse_integer(btrim(v_piece[9], ':,'));
    v_bundle.lowest_epoch   := pgfence._parse_integer(btrim(v_piece[v_tail + 13], ':,'));
    v_bundle.previous       := v_piece[v_tail + 16];
    v_bundle.root_threshold := pgfence._parse_integer(btrim(v_piece[v_tail + 19], ':,'));
    v_bundle.schema         := v_piece[v_tail + 22];
    v_bundle.version        := pgfence._parse_integer(btrim(v_piece[v_tail + 25], ':}'));
    for i in 1 .. v_tail / 16 loop
        v_key.expires_at := pgfence._parse_integer(btrim(v_piece[16 * i - 3], ':,'));
        v_key.kid        := v_piece[16 * i];
        v_key.not_before := pgfence._parse_integer(btrim(v_piece[16 * i + 3], ':,'));
        v_key.public_key := v_piece[16 * i + 6];
        v_key.purpose    := v_piece[16 * i + 10];
        v_bundle.keys[i] := v_key;
    end loop;

    if p_document is distinct from pgfence._encode_bundle(v_bundle)
       or v_bundle.schema <> 'trustBundle.v1'
       or v_bundle.version < 1
       or v_bundle.root_threshold < 1
       or v_bundle.expires_at <= v_bundle.issued_at
       or not pgfence._is_identifier(v_bundle.audience)
       or not (v_bundle.previous = '' or pgfence._is_digest(v_bundle.previous)) then
        return null;
    end if;
    foreach v_key in array v_bundle.keys loop
        if v_key.purpose not in ('grant', 'root', 'status')
           or v_key.expires_at <= v_key.not_before
           or not pgfence._is_digest(v_key.public_key) then
            return null;
        end if;
        if v_key.kid <> left(encode(sha256(decode(v_key.public_key, 'hex')), 'hex'), 16)
           or v_key.kid <= v_kid
           or pgfence._ed25519_decode(decode(v_key.public_key, 'hex')) is null then
            return null;
        end if;
        v_kid := v_key.kid;
        v_roots := v_roots + (v_key.purpose = 'root')::integer;
    end loop;
    if v_roots < v_bundle.root_threshold then
        return null;
    end if;
    return v_bundle;
end
$$;
-- next statement
revoke all on function pgfence._parse_bundle(text) from public;
-- next statement
comment on function pgfence._parse_bundle(text) is
    'The document of a canonical trustBundle.v1 that is good in itself; NULL for any other text, never an error.';
