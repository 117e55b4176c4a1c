-- Checks a token in the order of R5 up to the signature: envelope, key (known to the current bundle,
-- of the schema's purpose, valid at p_now), signature over the raw bytes, message in ASCII. What the
-- message says is for _parse_grant and _parse_status. pgfence.tokens gives the same answers.
create function pgfence._verify_token(p_token text, p_schema text, p_now timestamptz)
returns pgfence._token_check
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_check  pgfence._token_check;
    v_part   text[];
    v_body   bytea;
    v_footer bytea;
    v_bundle_expires_at timestamptz;
    v_key    pgfence.trust_keys;
    v_text   text;
begin
    v_check.verdict := 'MALFORMED';
    v_check.reason := 'ENVELOPE';
    if p_token is null or octet_length(p_token) > 8192 then
        return v_check;
    end if;
    v_part := string_to_array(p_token, '.');
    if cardinality(v_part) <> 4 or v_part[1] <> 'v4' or v_part[2] <> 'public' then
        return v_check;
    end if;
    v_body := pgfence._base64url_decode(v_part[3]);
    v_footer := pgfence._base64url_decode(v_part[4]);
    if v_body is null or v_footer is null or length(v_body) < 64 then
        return v_check;
    end if;
    v_text := encode(v_footer, 'escape');
    v_check.kid := substr(v_text, 9, 16);
    if v_text <> '{"kid":"' || v_check.kid || '"}'
       or length(v_check.kid) <> 16
       or translate(v_check.kid, '0123456789abcdef', '') <> '' then
        v_check.kid := null;
        return v_check;
    end if;

    v_check.verdict := 'UNKNOWN_KEY';
    select b.version, b.expires_at into v_check.bundle_version, v_bundle_expires_at
    from pgfence.trust_bundles b order by b.version desc limit 1;
    select * into v_key from pgfence.trust_keys k
    where k.bundle_version = v_check.bundle_version and k.kid = v_check.kid;
    v_check.key_expires_at := least(v_key.expires_at, v_bundle_expires_at);
    v_check.reason := case
        when v_check.bundle_version is null then 'BUNDLE_MISSING'
        when (p_now < v_bundle_expires_at) is not true then 'BUNDLE_EXPIRED'
        when v_key.kid is null then 'KID'
        when (v_key.purpose = case p_schema when 'lockGrant.v1' then 'grant' when 'lockStatus.v1' then 'status' end)
            is not true then 'PURPOSE'
        when (p_now >= v_key.not_before) is not true then 'NOT_YET_VALID'
        when (p_now < v_key.expires_at) is not true then 'EXPIRED'
    end;
    if v_check.reason is not null then
        return v_check;
    end if;

    if pgfence._ed25519_verify(
        v_key.public_key,
        pgfence._pae(array['v4.public.'::bytea, substr(v_body, 1, length(v_body) - 64), v_footer, convert_to(p_schema, 'UTF8')]),
        substr(v_body, length(v_body) - 63)) is not true
    then
        v_check.verdict := 'BAD_SIGNATURE';
        v_check.reason := 'SIGNATURE';
        return v_check;
    end if;

    -- bytes that are not ASCII, and NUL and the backslash, come out of this longer than they went in
    v_body := substr(v_body, 1, length(v_body) - 64);
    v_text := encode(v_body, 'escape');
    if length(v_text) <> length(v_body) then
        v_check.verdict := 'MALFORMED';
        v_check.reason := 'MESSAGE';
        return v_check;
    end if;
    v_check.verdict := null;
    v_check.message := v_text;
    v_check.message_digest := sha256(v_body);
    return v_check;
end
$$;
-- next statement
revoke all on function pgfence._verify_token(text, text, timestamptz) from public;
-- next statement
comment on function pgfence._verify_token(text, text, timestamptz) is
    'Checks envelope, key and signature of a token (R2-R5). verdict NULL: good; else MALFORMED, UNKNOWN_KEY or BAD_SIGNATURE. Raises XX001 if the key''s table is incomplete.';
