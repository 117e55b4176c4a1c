-- The bundle or the signature has changed since the fence was raised: remember what is verified now (R4).
create function pgfence._remember_verification(p_known pgfence._authentication)
returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    update pgfence.operations as o
       set token_digest = p_known.token_digest, bundle_version = p_known.bundle_version,
           key_expires_at = p_known.key_expires_at
     where o.resource = (p_known.grant_claims).resource and o.fence_token = (p_known.grant_claims).fence_token
$$;
-- next statement
revoke all on function pgfence._remember_verification(pgfence._authentication) from public;
-- next statement
comment on function pgfence._remember_verification(pgfence._authentication) is
    'Remembers by which bundle a grant was verified last (R4).';
