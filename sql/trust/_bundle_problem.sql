-- Why a bundle may not replace the one in force, by R31; null: it may. p_before null: it would be the
-- first. The order of the checks and their names are those of pgfence/model/bundle.py.
-- Computes the comb tables of root keys that sign for the first time.
create function pgfence._bundle_problem(
    p_before pgfence._bundle, p_before_digest text, p_bundle pgfence._bundle, p_document text, p_signatures text[],
    p_now timestamptz
)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_signed    bytea;
    v_first     bigint;     -- a root key that signs is valid when the bundle was issued, and now
    v_last      bigint;
    v_old_roots text[];
    v_new_roots text[];
    v_signature text;
    v_kid       text;
    v_key       bytea;
    v_signers   text[] := '{}';
begin
    if p_bundle.schema is null then
        return 'DOCUMENT';
    elsif p_before.schema is null then
        if p_bundle.version <> 1 or p_bundle.previous <> '' then
            return 'NOT_FIRST';
        end if;
    elsif p_bundle = p_before then
        return 'INSTALLED';
    elsif p_bundle.version <> p_before.version + 1 then
        return 'VERSION';
    elsif p_bundle.previous <> p_before_digest then
        return 'PREVIOUS';
    elsif p_bundle.audience <> p_before.audience then
        return 'AUDIENCE';
    elsif p_bundle.lowest_epoch < p_before.lowest_epoch then
        return 'EPOCH';
    elsif exists (
        select from unnest(p_bundle.keys) as n join unnest(p_before.keys) as o on o.kid = n.kid
        where (o.purpose, o.public_key) <> (n.purpose, n.public_key)
    ) then
        return 'PURPOSE';
    end if;
    if pgfence._from_microseconds(p_bundle.expires_at) <= p_now then
        return 'EXPIRED';
    end if;

    v_signed := pgfence._pae(array[convert_to(p_bundle.schema, 'UTF8'), convert_to(p_document, 'UTF8')]);
    v_first := least(p_bundle.issued_at, pgfence._to_microseconds(p_now));
    v_last := greatest(p_bundle.issued_at, pgfence._to_microseconds(p_now));
    v_old_roots := array(
        select k.kid from unnest(p_before.keys) as k
        where k.purpose = 'root' and k.not_before <= v_first and k.expires_at > v_last);
    v_new_roots := array(
        select k.kid from unnest(p_bundle.keys) as k
        where k.purpose = 'root' and k.not_before <= v_first and k.expires_at > v_last);
    foreach v_signature in array p_signatures loop
        v_kid := split_part(v_signature, ':', 1);
        if (v_kid = any (v_old_roots || v_new_roots)) is not true
           or v_kid = any (v_signers)
           or length(v_signature) <> 145
           or translate(substr(v_signature, 18), '0123456789abcdef', '') <> '' then
            return 'SIGNATURE';
        end if;
        select decode(k.public_key, 'hex') into strict v_key
        from unnest(p_before.keys || p_bundle.keys) as k where k.kid = v_kid limit 1;
        perform pgfence._ed25519_install_key(v_key);
        if pgfence._ed25519_verify(v_key, v_signed, decode(substr(v_signature, 18), 'hex')) is not true then
            return 'SIGNATURE';
        end if;
        v_signers := v_signers || v_kid;
    end loop;
    if p_before.schema is not null
       and cardinality(array(select unnest(v_signers) intersect select unnest(v_old_roots))) < p_before.root_threshold then
        return 'OLD_QUORUM';
    end if;
    if cardinality(array(select unnest(v_signers) intersect select unnest(v_new_roots))) < p_bundle.root_threshold then
        return 'QUORUM';
    end if;
    return null;
end
$$;

revoke all on function pgfence._bundle_problem(
    pgfence._bundle, text, pgfence._bundle, text, text[], timestamptz) from public;

comment on function pgfence._bundle_problem(pgfence._bundle, text, pgfence._bundle, text, text[], timestamptz) is
    'The rule of R31 that a new trust bundle breaks, as one word; NULL if it breaks none.';
