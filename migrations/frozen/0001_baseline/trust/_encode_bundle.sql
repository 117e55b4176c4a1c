-- The canonical JSON of a trust bundle (in the form of R3). NULL if a field is NULL.
create function pgfence._encode_bundle(p_bundle pgfence._bundle)
returns text
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_keys text := '';
    v_key  pgfence._bundle_key;
begin
    foreach v_key in array coalesce(p_bundle.keys, '{}') loop
        v_keys := v_keys || case when v_keys = '' then '' else ',' end
            || '{"expiresAt":' || v_key.expires_at::text
            || ',"kid":"' || v_key.kid
            || '","notBefore":' || v_key.not_before::text
            || ',"publicKey":"' || v_key.public_key
            || '","purpose":"' || v_key.purpose || '"}';
    end loop;
    return '{"audience":"' || p_bundle.audience
        || '","expiresAt":' || p_bundle.expires_at::text
        || ',"issuedAt":' || p_bundle.issued_at::text
        || ',"keys":[' || v_keys
        || '],"lowestEpoch":' || p_bundle.lowest_epoch::text
        || ',"previous":"' || p_bundle.previous
        || '","rootThreshold":' || p_bundle.root_threshold::text
        || ',"schema":"' || p_bundle.schema
        || '","version":' || p_bundle.version::text || '}';
end
$$;
-- next statement
revoke all on function pgfence._encode_bundle(pgfence._bundle) from public;
-- next statement
comment on function pgfence._encode_bundle(pgfence._bundle) is
    'The canonical JSON of a trust bundle; NULL if a field is NULL.';
