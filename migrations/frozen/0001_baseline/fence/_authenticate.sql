-- R5 up to the audience: envelope, key, signature, strict JSON. A verification is remembered by
-- the digest of the whole token and the bundle version (R4); the key's end is looked at every time.
create function pgfence._authenticate(p_grant text)
returns pgfence._authentication
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_known pgfence._authentication;
    v_message text;
    v_check pgfence._token_check;
begin
    select c.audience, c.version, (select max(b.version) from pgfence.trust_bundles as b)
      into v_known.audience, v_known.configuration_version, v_known.bundle_version
      from pgfence.configuration as c;
    v_known.token_digest := pg_catalog.sha256(pg_catalog.convert_to(p_grant, 'UTF8'));

    select o.grant_message, o.grant_digest, o.key_expires_at
      into v_message, v_known.grant_digest, v_known.key_expires_at
      from pgfence.operations as o
     where o.token_digest = v_known.token_digest and o.bundle_version = v_known.bundle_version
       and o.key_expires_at > pg_catalog.clock_timestamp();
    v_known.remembered := found;
    if not v_known.remembered then
        v_check := pgfence._verify_token(p_grant, 'lockGrant.v1', pg_catalog.clock_timestamp());
        if v_check.verdict is not null then
            v_known.refused := v_check.verdict;
            v_known.reason := v_check.reason;
            select e.meaning into v_known.explanation from pgfence.error_codes() as e where e.name = v_check.verdict;
            return v_known;
        end if;
        v_message := v_check.message;
        v_known.grant_digest := v_check.message_digest;
        v_known.key_expires_at := v_check.key_expires_at;
    end if;
    v_known.grant_claims := pgfence._parse_grant(v_message);
    if (v_known.grant_claims).schema is null then
        v_known.refused := 'MALFORMED';
        v_known.reason := 'MESSAGE';
        v_known.explanation := 'the signed message is not a canonical lockGrant.v1';
        v_known.grant_digest := null;
    end if;
    return v_known;
end
$$;
-- next statement
revoke all on function pgfence._authenticate(text) from public;
-- next statement
comment on function pgfence._authenticate(text) is
    'Verifies a grant token, or remembers that it was verified (R4, R5); `refused` names what is wrong.';
