-- The one place where a write is accepted or refused. The checks stand in the order of the
-- contract, and the first one that fails is the verdict. fenced_apply() calls it with a segment,
-- and writes the receipt of one that may be accepted; advance() without one.
create function pgfence._decide(
    p_grant text, p_segment_seq bigint, p_payload_digest bytea, p_status text
)
returns pgfence._decision
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_snapshot_isolation constant boolean :=
        pg_catalog.current_setting('transaction_isolation') in ('repeatable read', 'serializable');
    v_known record;
    v_grant pgfence._grant;
    v_digest bytea;
    v_configuration pgfence.configuration;
    v_policy pgfence.policies;
    v_fence pgfence.fences;
    v_highest pgfence.operations;
    v_proof pgfence._proof;
    v_lease record;
    v_locked_until timestamptz;
    v_receipt pgfence.receipts;
    v_step bigint;
    v_next_segment bigint;
    v_refused text;
    v_reason text;
    v_explanation text;
begin
    <<rules>>
    begin
        loop
            -- R5: is the grant genuine, and meant for this database?
            v_known := pgfence._authenticate(p_grant);
            v_grant := v_known.grant_claims;
            v_digest := v_known.grant_digest;
            if v_known.refused is not null then
                v_refused := v_known.refused;
                v_reason := v_known.reason;
                v_explanation := v_known.explanation;
                exit rules;
            end if;
            if v_grant.audience <> v_known.audience then
                v_refused := 'WRONG_AUDIENCE';
                v_explanation := pg_catalog.format('the grant was issued for database %s; this one is %s',
                    v_grant.audience, v_known.audience);
                exit rules;
            end if;

            -- R6: does the session belong to the workload that owns the grant? Asked before the lock, so
            -- that a stranger holds up nobody; the configuration's version says whether it still holds.
            if pgfence._workload_of_session() is distinct from v_grant.owner then
                v_refused := 'NOT_OWNER';
                v_explanation := pg_catalog.format('role %I does not belong to workload %s, which owns the grant',
                    session_user, v_grant.owner);
                exit rules;
            end if;

            -- R9: the fence row lock. What follows reads what is committed after it. A fence below
            -- the highest stays below it (R17), and a lease that is over stays over: neither can be
            -- accepted any more, so neither needs the lock, and a past owner holds up nobody. (An
            -- old snapshot cannot tell that a lease is over; a status proof needs no snapshot.)
            select c.* into strict v_configuration from pgfence.configuration as c;
            v_proof := pgfence._verify_proof(p_status, v_grant, v_digest, v_configuration.audience);
            loop
                select f.* into v_fence from pgfence.fences as f where f.resource = v_grant.resource;
                if not found then
                    insert into pgfence.fences (resource) values (v_grant.resource) on conflict do nothing;
                end if;
                v_lease := pgfence._lease_now(v_grant, v_digest, v_proof, v_configuration, pg_catalog.clock_timestamp());
                exit when v_grant.fence_token < v_fence.highest_fence
                       or not v_lease.held and not (v_snapshot_isolation and v_lease.verdict = 'NOT_HELD');
                select f.* into v_fence from pgfence.fences as f
                 where f.resource = v_grant.resource for no key update;
                exit when found;
            end loop;
            if v_lease.held then
                v_locked_until := case when v_grant.fence_token >= v_fence.highest_fence
                                       then greatest(v_lease.held_until, pg_catalog.clock_timestamp() + interval '5 seconds') end;
                v_lease := pgfence._lease_now(v_grant, v_digest, v_proof, v_configuration, pg_catalog.clock_timestamp());
            end if;
            if v_snapshot_isolation then
                perform pgfence._refuse_old_snapshot();
            end if;
            -- If bundle or workloads changed while we waited for the lock, ask again by the new ones.
            select c.* into strict v_configuration from pgfence.configuration as c;
            exit when v_configuration.version = v_known.configuration_version;
        end loop;

        -- R7: is the epoch still good, and is this the database that was guarded?
        if v_grant.issuer_epoch < v_configuration.epoch_floor then
            v_refused := 'REVOKED_EPOCH';
            v_explanation := pg_catalog.format('issuer epoch %s has been revoked, the lowest good one is %s: acquire the resource again',
                v_grant.issuer_epoch, v_configuration.epoch_floor);
            exit rules;
        end if;
        if not pgfence._is_recorded_database(v_configuration) then
            v_refused := 'REBIND_REQUIRED';
            v_explanation := 'this database was promoted, restored or copied since it was last guarded: '
                || case when v_configuration.registry_is_local then 'acquire the resource again'
                        else 'ask the registry for a new status proof' end;
            -- A distant registry knows nothing of it: from now on only what it signs after this counts.
            if not v_configuration.registry_is_local then
                perform pgfence_registry._rebind_database();
            end if;
            exit rules;
        end if;

        -- R8: does the policy of the resource allow it?
        v_policy := pgfence._policy_of(v_grant.resource);
        if v_grant.policy_generation <> v_policy.generation then
            v_refused := 'STALE_POLICY';
            v_explanation := pg_catalog.format('the grant was issued under policy generation %s, it is %s now: acquire the resource again',
                v_grant.policy_generation, v_policy.generation);
            exit rules;
        end if;
        if v_grant.operation_class <> all (v_policy.operation_classes) then
            v_refused := 'WRONG_OPERATION';
            v_explanation := pg_catalog.format('%s does not allow operation class %s',
                v_grant.resource, v_grant.operation_class);
            exit rules;
        end if;
        if v_fence.paused_because is not null then
            v_refused := 'PAUSED';
            v_explanation := pg_catalog.format('%s is paused: %s', v_grant.resource, v_fence.paused_because);
            exit rules;
        end if;

        select o.* into v_highest from pgfence.operations as o
         where o.resource = v_grant.resource and o.fence_token = v_fence.highest_fence;

        -- R10: has a newer owner written? If this grant is the newer one all the same, the token
        -- sequence has gone back.
        if v_grant.fence_token < v_fence.highest_fence then
            if v_lease.held and v_grant.issued_at > v_highest.issued_at then
                v_refused := 'FENCE_REGRESSION';
                v_explanation := pg_catalog.format(
                    'the registry issued fence %s of %s after fence %s, which has written: its token sequence has gone back',
                    v_grant.fence_token, v_grant.resource, v_fence.highest_fence);
                update pgfence.fences as f set paused_because = v_explanation where f.resource = v_grant.resource;
            else
                v_refused := 'STALE_OWNER';
                v_explanation := pg_catalog.format('fence %s of %s is stale: %s has written with fence %s',
                    v_grant.fence_token, v_grant.resource, v_highest.owner, v_fence.highest_fence);
            end if;
            exit rules;
        end if;

        -- R11: one root and one grant for each fence, one fence for each root.
        if v_grant.fence_token = v_fence.highest_fence and v_grant.operation_root <> v_highest.operation_root then
            v_refused := 'ROOT_MISMATCH';
            v_explanation := pg_catalog.format('fence %s of %s belongs to another operation root',
                v_grant.fence_token, v_grant.resource);
            exit rules;
        end if;
        if v_grant.fence_token = v_fence.highest_fence and v_digest <> v_highest.grant_digest then
            v_refused := 'EQUIVOCATION';
            v_explanation := pg_catalog.format('two grants carry fence %s of %s: the registry contradicts itself',
                v_grant.fence_token, v_grant.resource);
            exit rules;
        end if;
        if v_grant.fence_token > v_fence.highest_fence
           and exists (select from pgfence.operations as o
                        where o.resource = v_grant.resource and o.operation_root = v_grant.operation_root) then
            v_refused := 'ROOT_MISMATCH';
            v_explanation := pg_catalog.format('the operation root was used on %s under an earlier fence: use a new request ID',
                v_grant.resource);
            exit rules;
        end if;

        -- R12: was the segment accepted already? Then the same receipt, or quarantine.
        if v_grant.fence_token = v_fence.highest_fence and p_segment_seq <= v_fence.last_segment then
            select r.* into strict v_receipt from pgfence.receipts as r
             where r.resource = v_grant.resource and r.fence_token = v_grant.fence_token
               and r.segment_seq = p_segment_seq;
            if v_receipt.payload_digest = p_payload_digest then
                return row(pgfence._verdict_of('REPLAYED', v_receipt, v_fence), null)::pgfence._decision;
            end if;
            perform pgfence._quarantine_segment(v_receipt, p_payload_digest);
            v_refused := 'PAYLOAD_CONFLICT';
            v_explanation := pg_catalog.format('segment %s of %s was accepted with another payload (SHA-256 %s): this one (SHA-256 %s) is in quarantine',
                p_segment_seq, v_grant.resource, pg_catalog.encode(v_receipt.payload_digest, 'hex'),
                pg_catalog.encode(p_payload_digest, 'hex'));
            exit rules;
        end if;

        -- R13: is the lease held now? A snapshot may be older than its latest renewal.
        if not v_lease.held then
            if v_snapshot_isolation and v_lease.reason = 'EXPIRED' then
                raise exception using errcode = 'serialization_failure',
                    message = pg_catalog.format('the lease on %s has ended, as this transaction''s snapshot shows it', v_grant.resource),
                    hint = 'Try the transaction again.', constraint = 'R13';
            end if;
            v_refused := v_lease.verdict;
            v_reason := v_lease.reason;
            v_explanation := pg_catalog.format('lease %s on %s is not shown to be held now%s: %s',
                v_grant.lease, v_grant.resource, ' (' || v_lease.reason || ')',
                case when v_configuration.registry_is_local then 'acquire the resource again'
                     else 'ask the registry for a new status proof' end);
            exit rules;
        end if;

        -- R14: a higher fence within the step, from segment 1; the same fence, the next segment.
        -- A failover has raised the base of all fences, and that is no step of the registry's.
        v_step := v_grant.fence_token - greatest(v_fence.highest_fence, v_configuration.fence_base);
        if v_step > v_policy.largest_step then
            v_refused := 'FENCE_STEP';
            v_explanation := pg_catalog.format('fence %s lies %s above the highest one of %s, the policy allows %s',
                v_grant.fence_token, v_step, v_grant.resource, v_policy.largest_step);
            exit rules;
        end if;
        v_next_segment := case when v_grant.fence_token > v_fence.highest_fence then 1 else v_fence.last_segment + 1 end;
        if p_segment_seq <> v_next_segment then
            v_refused := 'SEGMENT_GAP';
            v_explanation := pg_catalog.format('segment %s of %s is not the next one, which is %s',
                p_segment_seq, v_grant.resource, v_next_segment);
            exit rules;
        end if;

        -- R25, R28: what stops an admission is an error, but in shadow a would-be refusal like the others.
        if p_segment_seq is not null and pgfence._shadow_prefix(v_grant.resource) is not null then
            begin
                perform pgfence._attest_guards(v_grant.resource);
            exception
                when sqlstate 'PF202' then
                    v_refused := 'GUARD_MISSING';
                    v_explanation := sqlerrm;
                    exit rules;
            end;
        end if;
    end rules;

    -- Who is not admitted keeps the lock all the same: no longer than the lease, or to hear the verdict (R20).
    if v_locked_until is not null and (v_refused is not null or p_segment_seq is null)
       and pgfence._shadow_prefix(v_grant.resource) is null then
        perform pgfence._limit_transaction(v_locked_until);
    end if;
    if v_refused is not null then
        return row(pgfence._refuse(v_refused, v_reason, v_explanation, v_grant, v_digest, v_fence, p_segment_seq,
                                   p_payload_digest, coalesce(v_grant.resource, pgfence._claimed_resource(p_grant))),
                   null)::pgfence._decision;
    end if;
    if v_snapshot_isolation then
        -- From here to COMMIT nobody may change what was looked at.
        perform from pgfence.configuration as c for share;
    end if;
    if v_grant.fence_token > v_fence.highest_fence then
        v_fence := pgfence._raise_fence(v_known, pg_catalog.clock_timestamp());
    elsif not v_known.remembered then
        perform pgfence._remember_verification(v_known);
    end if;
    if p_segment_seq is null then
        return row(pgfence._verdict_of('ADVANCED', null, v_fence), null)::pgfence._decision;
    end if;
    return row(null, pgfence._admit(p_grant, v_known, p_segment_seq, p_payload_digest, v_configuration,
                                    v_lease.held_until))::pgfence._decision;
end
$$;
revoke all on function pgfence._decide(text, bigint, bytea, text) from public;
comment on function pgfence._decide(text, bigint, bytea, text) is
    'Verdict on a segment (or, without one, on raising the fence): rules R5 to R14 in order. Lets 40001, 40P01, 55P03, 57014, 25P03 and 25P04 pass.';
