-- Is a status proof genuine, and of this grant (R5, R13)? Asked once for each bundle and before the fence row
-- lock: what the wait for the lock can change is time, which pgfence._lease_now looks at.
create function pgfence._verify_proof(
    p_status text, p_grant pgfence._grant, p_grant_digest bytea, p_audience text
)
returns pgfence._proof
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_check pgfence._token_check;
    v_status pgfence._status;
begin
    if p_status is null then
        return null;
    end if;
    v_check := pgfence._verify_token(p_status, 'lockStatus.v1', pg_catalog.clock_timestamp());
    if v_check.verdict is not null then
        return row(v_check.verdict, 'STATUS_PROOF', null, null, null)::pgfence._proof;
    end if;
    v_status := pgfence._parse_status(v_check.message);
    if v_status.schema is null then
        return row('MALFORMED', 'STATUS_PROOF', null, null, null)::pgfence._proof;
    elsif v_status.audience is distinct from p_audience then
        return row('WRONG_AUDIENCE', 'STATUS_PROOF', null, null, null)::pgfence._proof;
    elsif v_status.grant_digest <> pg_catalog.encode(p_grant_digest, 'hex')
          or v_status.issuer_epoch < p_grant.issuer_epoch then
        return row('STALE_STATUS', 'OTHER_GRANT', null, null, null)::pgfence._proof;
    end if;
    return row(null, null, v_check.key_expires_at, pgfence._from_microseconds(v_status.issued_at),
               pgfence._from_microseconds(v_status.valid_until))::pgfence._proof;
end
$$;
-- next statement
revoke all on function pgfence._verify_proof(text, pgfence._grant, bytea, text) from public;
-- next statement
comment on function pgfence._verify_proof(text, pgfence._grant, bytea, text) is
    'What a status proof shows of a grant: what is wrong with it, or its window; null without one (R13).';
