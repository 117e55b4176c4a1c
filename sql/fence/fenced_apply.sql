-- The entry point of every protected write. Answers a verdict; only ACCEPTED admits the resource,
-- and only until this transaction ends. The guard makes ignoring a refusal harmless.
--
-- One text of the rules, two speeds. pgfence._decide() is the text: it takes every check in turn.
-- It leaves in the fence row which token passed, for which login role, until when and by which
-- version of bundle, policy and workloads. While all of that still holds, the next segment of the
-- same grant is accepted by one UPDATE whose WHERE asks for it; any doubt goes to the text.
--
-- Plans are kept, and must still be good when tables that were small have grown: hence no sequential
-- scans. What cannot do without one then looks so expensive that it would be compiled: hence no JIT.
create function pgfence.fenced_apply(
    p_grant text, p_segment_seq bigint, p_payload text, p_status text default null
)
returns pgfence.verdict
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_payload_digest bytea;
    v_decision pgfence._decision;
    v_admission pgfence._admission;
    v_accepted_at timestamptz;
    v_limited text;
begin
    -- PostgreSQL sets up each expression anew in each transaction: hence few of them on the way to ACCEPTED.
    -- Outside READ COMMITTED the configuration must be locked (R9): that is for the text.
    if p_segment_seq >= 1 and p_payload is not null and p_status is null
       and pg_catalog.current_setting('transaction_isolation') = 'read committed' then
        v_payload_digest := pg_catalog.sha256(pg_catalog.convert_to(p_payload, 'UTF8'));
        -- One time for the receipt and for the look at the lease; once the lock is held the lease is looked at again.
        v_accepted_at := pg_catalog.clock_timestamp();
        update pgfence.fences as f
           set last_segment = p_segment_seq,
               receipt_count = f.receipt_count + 1,
               previous_digest = f.last_digest,
               last_digest = pgfence._receipt_digest(f.last_digest, f.resource, f.highest_fence, p_segment_seq, f.operation_root,
                                 f.grant_digest, v_payload_digest, v_accepted_at, f.checked_role),
               admitted_transaction = pg_catalog.pg_current_xact_id(),
               admitted_transaction_start = current_timestamp,
               admitted_backend = pg_catalog.pg_backend_pid(),
               -- R20; an ID that comes again in a restored row could only end the transaction sooner
               admitted_until = case f.admitted_transaction when pg_catalog.pg_current_xact_id()
                                then f.admitted_until else g.lease_ends_at end,
               commit_look = 0
          from pgfence_registry.grants as g
         where f.checked_hash = pg_catalog.hashtextextended(p_grant collate "C", 0)         -- since it was checked:
           and g.lease = f.current_lease                                                    -- no other grant, R10, R13
           and g.token = p_grant                                                            -- the same token, R5, R11
           and f.checked_role = session_user::text                                          -- R6
           and f.checked_server = pgfence._this_server()                                    -- R7
           and f.checked_version = (select c.version from pgfence.configuration as c)       -- R6, R7, R8
           and least(f.checked_until, g.lease_ends_at) > v_accepted_at                      -- R4, R13
           and f.last_segment = p_segment_seq - 1                                           -- R12, R14
        returning f.resource, f.highest_fence, f.operation_root, f.grant_digest, f.previous_digest, f.last_digest,
                  v_accepted_at, f.checked_version, f.admitted_until, least(f.admitted_until, f.checked_until)
        into v_admission;
    end if;
    if v_admission.resource is null then
        if (p_grant is not null and p_payload is not null and p_segment_seq >= 1) is not true then
            perform pgfence._raise('INVALID_ARGUMENT',
                case when p_grant is null then 'fenced_apply: p_grant is NULL'
                     when p_segment_seq is null then 'fenced_apply: p_segment_seq is NULL'
                     when p_payload is null then 'fenced_apply: p_payload is NULL'
                     else pg_catalog.format('fenced_apply: segment %s is below 1', p_segment_seq) end,
                'Pass the grant token, a segment number from 1 on, and a payload ('''' is one).', 'R5');
        end if;
        v_payload_digest := coalesce(v_payload_digest, pg_catalog.sha256(pg_catalog.convert_to(p_payload, 'UTF8')));
        v_decision := pgfence._decide(p_grant collate "C", p_segment_seq, v_payload_digest, p_status collate "C");
        if (v_decision.answer).verdict is not null then
            return v_decision.answer;
        end if;
        v_admission := v_decision.admission;
    end if;
    -- First hear of every change so far: see pgfence.attestation_source.
    if not (pg_catalog.current_setting('transaction_isolation') = 'read committed'
            and pg_catalog.pg_relation_is_updatable('1'::pg_catalog.regclass, false) = 0
            and pgfence._guards_are_whole(v_admission.resource)) then
        perform pgfence._attest_guards(v_admission.resource);                                                 -- R25
    end if;
    -- The receipt (R15). Now that the lock is held: what may have changed while we waited for it (R9)?
    -- PostgreSQL looks at the WHERE above again only when the one who held the lock has changed the row.
    insert into pgfence.receipts
        (resource, fence_token, segment_seq, operation_root, grant_digest, payload_digest, session_role, accepted_at,
         previous_digest, digest)
    select v_admission.resource, v_admission.fence_token, p_segment_seq, v_admission.operation_root, v_admission.grant_digest,
           v_payload_digest, session_user, v_admission.accepted_at, v_admission.previous_digest, v_admission.digest
      from pgfence.configuration as c
     where c.version = v_admission.checked_version
       and v_admission.good_until > pg_catalog.clock_timestamp();
    if not found then
        raise exception using errcode = 'serialization_failure',
            message = pg_catalog.format('lease, bundle, policies or workloads changed while the call waited for %s', v_admission.resource),
            hint = 'Try the transaction again.', constraint = 'R9';
    end if;
    -- R20; what pgfence._limit_transaction does where the client has set no time-out, which saves a call.
    v_limited := case
        when v_admission.ends_at is null then null  -- in shadow no session is ended (R28)
        when pg_catalog.current_setting('idle_in_transaction_session_timeout') = '0'
             and pg_catalog.current_setting('transaction_timeout', true) = '0' then
            pg_catalog.set_config('idle_in_transaction_session_timeout', pg_catalog.set_config('transaction_timeout',
                (greatest(1, least(2147483647, pg_catalog.date_part('epoch',
                    v_admission.ends_at - pg_catalog.clock_timestamp()) * 1000))::bigint)::text, true), true)
        else pgfence._limit_transaction(v_admission.ends_at)::text
    end;
    return row('ACCEPTED', null, null, v_admission.resource, v_admission.fence_token, p_segment_seq, v_admission.fence_token,
               p_segment_seq, pg_catalog.encode(v_admission.digest, 'hex'), pg_catalog.encode(v_payload_digest, 'hex'),
               v_admission.accepted_at, null)::pgfence.verdict;
end
$$;
revoke all on function pgfence.fenced_apply(text, bigint, text, text) from public;
grant execute on function pgfence.fenced_apply(text, bigint, text, text) to pgfence_app;
comment on function pgfence.fenced_apply(text, bigint, text, text) is
    'Accepts one segment of a grant''s operation and admits its resource in this transaction, or answers why not (R5 to R16). Raises PF301 for a NULL or a segment below 1, PF202 when a guard is missing, and at COMMIT PF203 when the lease has ended; 40001, 40P01, 55P03, 57014, 25P03 and 25P04 pass through.';
