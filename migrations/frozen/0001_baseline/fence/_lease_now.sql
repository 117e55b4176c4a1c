-- Is the grant held now, and until when (R13)? The registry's own row where it lives here; else a
-- status proof for this grant, or the grant's own statusUntil. A distant registry's clock may differ
-- from ours by the tolerance, which is taken off both ends of the window; and nothing counts that it may
-- have signed before this database was promoted or restored, or before it was the registry (R39).
create function pgfence._lease_now(
    p_grant pgfence._grant, p_grant_digest bytea, p_proof pgfence._proof, p_configuration pgfence.configuration,
    p_now timestamptz,
    out held boolean, out verdict text, out reason text, out held_until timestamptz
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_registered pgfence_registry.grants;
    v_issued_at timestamptz;
    v_tolerance interval := p_configuration.clock_tolerance_ms * interval '1 millisecond';
begin
    held := false;
    if p_proof.verdict is not null or p_now >= p_proof.key_expires_at then
        verdict := coalesce(p_proof.verdict, 'UNKNOWN_KEY');
        reason := coalesce(p_proof.reason, 'STATUS_PROOF');
        return;
    end if;
    if p_proof.valid_until is not null or not p_configuration.registry_is_local then
        v_issued_at := coalesce(p_proof.issued_at, pgfence._from_microseconds(p_grant.issued_at));
        held_until := coalesce(p_proof.valid_until, pgfence._from_microseconds(p_grant.status_until)) - v_tolerance;
        reason := case when p_now >= held_until then 'ENDED'
                       when p_now < v_issued_at - v_tolerance then 'FROM_THE_FUTURE'
                       when v_issued_at - v_tolerance <= p_configuration.proofs_from then 'BEFORE_REBIND' end;
        if reason is not null then
            verdict := 'STALE_STATUS';
            return;
        end if;
    end if;
    if p_configuration.registry_is_local then
        select g.* into v_registered from pgfence_registry.grants as g where g.digest = p_grant_digest;
        reason := case when not found then 'UNKNOWN_GRANT'
                       else pgfence_registry._state_of(v_registered, p_now) end;
        if reason <> 'HELD' then
            verdict := 'NOT_HELD';
            return;
        end if;
        held_until := least(held_until, v_registered.lease_ends_at);
    end if;
    reason := null;
    held := true;
end
$$;
-- next statement
revoke all on function pgfence._lease_now(pgfence._grant, bytea, pgfence._proof, pgfence.configuration, timestamptz) from public;
-- next statement
comment on function pgfence._lease_now(pgfence._grant, bytea, pgfence._proof, pgfence.configuration, timestamptz) is
    'Whether a grant is held now, and until when; else NOT_HELD, STALE_STATUS (OTHER_GRANT, ENDED, FROM_THE_FUTURE, BEFORE_REBIND) or what is wrong with the proof (R13).';
