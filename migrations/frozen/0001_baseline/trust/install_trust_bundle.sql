-- Installs the first trust bundle: version 1, without a bundle before it, signed by its own root
-- threshold. Signatures are 'kid:signature' in hexadecimal, over the document (_pae with its schema);
-- each must be good. Refusing changes nothing. Says which version is in force.
create function pgfence.install_trust_bundle(p_document text, p_signatures text[])
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bundle    pgfence._bundle := pgfence._parse_bundle(p_document);
    v_now       constant timestamptz := clock_timestamp();
    v_expires_at constant timestamptz := pgfence._from_microseconds(v_bundle.expires_at);
    v_signed    bytea;
    v_signature text;
    v_kid       text;
    v_signers   text[] := '{}';
    v_key       pgfence.trust_keys;
    v_problem   text;
begin
    if p_document is null or p_signatures is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'a trust bundle needs a document and signatures',
            'pgfence trust init makes both.', 'R31');
    end if;
    lock table pgfence.trust_bundles in share row exclusive mode;
    if exists (select from pgfence.trust_bundles) then
        v_problem := 'INSTALLED';
    elsif v_bundle.schema is null then
        v_problem := 'DOCUMENT';
    elsif v_bundle.version <> 1 or v_bundle.previous <> '' then
        v_problem := 'NOT_FIRST';
    elsif v_expires_at <= v_now then
        v_problem := 'EXPIRED';
    else
        insert into pgfence.trust_bundles (
            version, document, digest, signatures, audience, lowest_epoch, root_threshold, issued_at, expires_at)
        values (
            v_bundle.version, p_document, encode(sha256(convert_to(p_document, 'UTF8')), 'hex'), p_signatures,
            v_bundle.audience, v_bundle.lowest_epoch, v_bundle.root_threshold,
            pgfence._from_microseconds(v_bundle.issued_at), v_expires_at);
        insert into pgfence.trust_keys (bundle_version, kid, purpose, public_key, not_before, expires_at)
        select v_bundle.version, k.kid, k.purpose, decode(k.public_key, 'hex'),
               pgfence._from_microseconds(k.not_before), pgfence._from_microseconds(k.expires_at)
        from unnest(v_bundle.keys) as k;

        v_signed := pgfence._pae(array[convert_to(v_bundle.schema, 'UTF8'), convert_to(p_document, 'UTF8')]);
        foreach v_signature in array p_signatures loop
            v_kid := split_part(v_signature, ':', 1);
            select * into v_key from pgfence.trust_keys k
            where k.bundle_version = v_bundle.version and k.kid = v_kid and k.purpose = 'root'
              and k.not_before <= v_now and k.expires_at > v_now;
            if not found
               or v_kid = any (v_signers)
               or length(v_signature) <> 145
               or translate(substr(v_signature, 18), '0123456789abcdef', '') <> '' then
                v_problem := 'SIGNATURE';
                exit;
            end if;
            perform pgfence._ed25519_install_key(v_key.public_key);
            if pgfence._ed25519_verify(v_key.public_key, v_signed,
                                       decode(substr(v_signature, 18), 'hex')) is not true then
                v_problem := 'SIGNATURE';
                exit;
            end if;
            v_signers := v_signers || v_kid;
        end loop;
        if v_problem is null and cardinality(v_signers) < v_bundle.root_threshold then
            v_problem := 'QUORUM';
        end if;
    end if;
    if v_problem is not null then
        perform pgfence._raise('TRUST_REFUSED',
            'the trust bundle is refused: ' || case v_problem
                when 'INSTALLED' then 'this database has a trust bundle'
                when 'DOCUMENT' then 'the document is not a canonical, valid trustBundle.v1'
                when 'NOT_FIRST' then 'the first bundle has version 1 and names no bundle before it'
                when 'EXPIRED' then 'it has expired'
                when 'SIGNATURE' then 'a signature is not that of one of its valid root keys, or a key signed twice'
                when 'QUORUM' then 'fewer root keys signed than its threshold asks for'
            end,
            'Nothing was changed. pgfence trust init makes a bundle.', 'R31',
            jsonb_build_object('problem', v_problem));
    end if;
    for v_key in select * from pgfence.trust_keys k where k.bundle_version = v_bundle.version loop
        perform pgfence._ed25519_install_key(v_key.public_key);
    end loop;
    update pgfence.configuration set audience = v_bundle.audience, version = version + 1;
    return v_bundle.version;
end
$$;
-- next statement
revoke all on function pgfence.install_trust_bundle(text, text[]) from public;
-- next statement
comment on function pgfence.install_trust_bundle(text, text[]) is
    'Installs the first trust bundle and returns its version. Raises PF305 (not valid, expired, not signed by its quorum, or one is installed), PF301 for NULL.';
