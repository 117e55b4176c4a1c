-- Installs a trust bundle: the first, or the next version after the one in force (R31). Signatures are
-- 'kid:signature' in hexadecimal, over the document (_pae with its schema). All of it happens in the
-- caller's transaction or nothing does, and only one installer is at work at a time. The version of the
-- configuration rises, so whatever was verified before is verified again (R4, R9).
create function pgfence.install_trust_bundle(p_document text, p_signatures text[])
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_bundle    pgfence._bundle := pgfence._parse_bundle(p_document);
    v_before    pgfence._bundle;
    v_installed pgfence.trust_bundles;
    v_problem   text;
    v_key       bytea;
begin
    perform pgfence._owner_only();
    if p_document is null or p_signatures is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'a trust bundle needs a document and signatures',
            'pgfence trust propose and pgfence trust sign make them.', 'R31');
    end if;
    lock table pgfence.trust_bundles in share row exclusive mode;
    -- Who waited for the lock with an old snapshot would compare with a bundle that is no longer in force.
    perform pgfence._refuse_old_snapshot();
    select b.* into v_installed from pgfence.trust_bundles as b order by b.version desc limit 1;
    if found then
        v_before := pgfence._parse_bundle(v_installed.document);
        if v_before.schema is null then
            raise exception using
                errcode = 'data_corrupted',
                message = format('trust bundle %s of this database cannot be read', v_installed.version),
                hint = 'Restore pgfence.trust_bundles from a backup.',
                constraint = 'R31';
        end if;
    end if;
    v_problem := pgfence._bundle_problem(
        v_before, v_installed.digest, v_bundle, p_document, p_signatures, clock_timestamp());
    if v_problem is not null then
        perform pgfence._raise('TRUST_REFUSED',
            'the trust bundle is refused: ' || case v_problem
                when 'DOCUMENT' then 'the document is not a canonical, valid trustBundle.v1'
                when 'NOT_FIRST' then 'the first bundle has version 1 and names no bundle before it'
                when 'INSTALLED' then 'it is in force already'
                when 'VERSION' then format('its version is %s, that of the bundle in force %s',
                    v_bundle.version, v_installed.version)
                when 'PREVIOUS' then format('it does not name the digest of the bundle in force, %s', v_installed.digest)
                when 'AUDIENCE' then format('it is for %s, this database is %s', v_bundle.audience, v_installed.audience)
                when 'EPOCH' then format('its lowest good epoch is %s, that of the bundle in force %s',
                    v_bundle.lowest_epoch, v_installed.lowest_epoch)
                when 'PURPOSE' then 'a key has another purpose than in the bundle in force'
                when 'EXPIRED' then 'it has expired'
                when 'SIGNATURE' then 'a signature is not that of a valid root key, or a key signed twice'
                when 'OLD_QUORUM' then format('fewer than %s root keys of the bundle in force signed',
                    v_installed.root_threshold)
                when 'QUORUM' then format('fewer than %s of its own root keys signed', v_bundle.root_threshold)
            end,
            'Nothing was changed. pgfence trust show compares a proposal with the bundle in force.', 'R31',
            jsonb_build_object('problem', v_problem));
    end if;

    insert into pgfence.trust_bundles (
        version, document, digest, signatures, audience, lowest_epoch, root_threshold, issued_at, expires_at)
    values (
        v_bundle.version, p_document, encode(sha256(convert_to(p_document, 'UTF8')), 'hex'), p_signatures,
        v_bundle.audience, v_bundle.lowest_epoch, v_bundle.root_threshold,
        pgfence._from_microseconds(v_bundle.issued_at), pgfence._from_microseconds(v_bundle.expires_at));
    insert into pgfence.trust_keys (bundle_version, kid, purpose, public_key, not_before, expires_at)
    select v_bundle.version, k.kid, k.purpose, decode(k.public_key, 'hex'),
           pgfence._from_microseconds(k.not_before), pgfence._from_microseconds(k.expires_at)
    from unnest(v_bundle.keys) as k;

    -- Comb tables for the keys of this bundle and for no other key; number 0 is the base point.
    delete from pgfence.ed25519_points as p using pgfence.ed25519_keys as e
    where p.key_id = e.key_id and e.key_id <> 0
      and e.public_key not in (select decode(k.public_key, 'hex') from unnest(v_bundle.keys) as k);
    delete from pgfence.ed25519_keys as e
    where e.key_id <> 0
      and e.public_key not in (select decode(k.public_key, 'hex') from unnest(v_bundle.keys) as k);
    for v_key in select decode(k.public_key, 'hex') from unnest(v_bundle.keys) as k loop
        perform pgfence._ed25519_install_key(v_key);
    end loop;

    -- A lease of a revoked epoch holds nothing any more: it is not renewed, and nobody waits for its end.
    update pgfence.configuration as c
       set audience = v_bundle.audience,
           issuer_epoch = greatest(c.issuer_epoch, v_bundle.lowest_epoch),
           epoch_floor = greatest(c.epoch_floor, v_bundle.lowest_epoch);
    return v_bundle.version;
end
$$;

revoke all on function pgfence.install_trust_bundle(text, text[]) from public;

comment on function pgfence.install_trust_bundle(text, text[]) is
    'Installs the first or the next trust bundle and returns its version (R31). Owner only. Raises PF305 when it breaks a rule, with the problem in DETAIL, PF301 for NULL, 40001 in a transaction with an old snapshot, XX001 if the bundle in force cannot be read.';
