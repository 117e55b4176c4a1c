-- Asks for a status proof of a lease that is younger than the one that the caller has: SIGNING, and
-- HELD with the proof as token when a registry process has signed it. A proof ends with the lease as it
-- stands now, which only rises, and after 30 seconds at the latest: so no successor is granted before
-- every proof has ended, unless the owner released. Takes no lock of the grant, and renews nothing.
create function pgfence_registry.prove(p_lease text, p_issued_after bigint default 0)
returns pgfence_registry.answer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_grant constant pgfence_registry.grants := pgfence_registry._own_grant(p_lease);
    v_configuration pgfence.configuration;
    v_answer pgfence_registry.answer;
    v_proof pgfence_registry.proofs;
    v_status pgfence._status;
    v_now constant timestamptz := pg_catalog.clock_timestamp();
begin
    if pg_catalog.current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        perform pgfence._raise('INVALID_ARGUMENT', 'prove: an old snapshot does not show that a lease is held',
            'Call it in READ COMMITTED, in a transaction of its own.', 'R13');
    elsif p_issued_after is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'prove: p_issued_after is NULL',
            'Pass issuedAt of the latest proof, or 0.', 'R13');
    elsif v_grant.lease is null then
        return pgfence_registry._unknown(p_lease);
    end if;
    v_answer := pgfence_registry._answer_of_grant(v_grant, false);
    if v_answer.state <> 'HELD' then
        return v_answer;
    end if;
    select c.* into strict v_configuration from pgfence.configuration as c;
    if v_grant.issuer_epoch < v_configuration.epoch_floor or not pgfence._is_recorded_database(v_configuration) then
        return pgfence_registry._revoked(v_answer);
    end if;

    -- The caller's may be from the future, and so may the latest one: our clock has gone back since.
    select p.* into v_proof from pgfence_registry.proofs as p
     where p.lease = p_lease and p_issued_after not between pgfence._to_microseconds(p.issued_at) and pgfence._to_microseconds(v_now)
       and v_now between p.issued_at and p.issued_at + (p.valid_until - p.issued_at) / 2;
    if not found then
        v_proof.valid_until := least(v_grant.lease_ends_at, v_now + interval '30 seconds');
        v_status.schema := 'lockStatus.v1';
        v_status.audience := (pgfence._parse_grant(v_grant.message)).audience;
        v_status.grant_digest := pg_catalog.encode(v_grant.digest, 'hex');
        v_status.state := 'HELD';
        v_status.revision := pg_catalog.pg_current_xact_id()::text::bigint;
        v_status.issuer_epoch := v_grant.issuer_epoch;
        v_status.issued_at := pgfence._to_microseconds(v_now);
        v_status.valid_until := pgfence._to_microseconds(v_proof.valid_until);
        insert into pgfence_registry.proofs as p (lease, message, issued_at, valid_until)
        values (p_lease, pgfence._encode_status(v_status), v_now, v_proof.valid_until)
        on conflict (lease) do update
           set message = excluded.message, token = null, issued_at = excluded.issued_at, valid_until = excluded.valid_until;
        -- Proofs of leases that were over a day ago are of no more use.
        delete from pgfence_registry.proofs as d
         where d.ctid in (select p.ctid from pgfence_registry.proofs as p
                           where p.valid_until < v_now - interval '1 day'
                           order by p.valid_until limit 10 for update skip locked);
        perform pg_catalog.pg_notify('pgfence_sign', '');
    end if;
    v_answer.remaining_ms := greatest(0, pg_catalog.floor(extract(epoch from v_proof.valid_until - v_now) * 1000));
    if v_proof.token is null then
        v_answer.state := 'SIGNING';
        v_answer.look_again_ms := 200;
        v_answer.wake_channel := pgfence_registry._wake_channel(v_grant.owner, v_grant.request_id);
    else
        v_answer.token := v_proof.token;
    end if;
    return v_answer;
end
$$;
-- next statement
revoke all on function pgfence_registry.prove(text, bigint) from public;
-- next statement
grant execute on function pgfence_registry.prove(text, bigint) to pgfence_app;
-- next statement
comment on function pgfence_registry.prove(text, bigint) is
    'A status proof of one of the caller''s leases, issued later than p_issued_after (microseconds), for fenced_apply() in another database (R13). remaining_ms is what is left of the proof. Raises PF301, PF302; needs READ COMMITTED.';
