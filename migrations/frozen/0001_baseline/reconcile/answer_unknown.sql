-- What a domain handler or a person says of a segment where the database cannot prove it (R45). For the
-- workload whose operation it is, and for members of pgfence_owner. It holds: an answer against a receipt, a
-- proof or an earlier answer is refused, so is one while the lease may still be held; NOT_APPLIED ends the lease
-- for good, so that no commit comes after it. The same answer again changes nothing. Where there is no lease to
-- end, no lock is kept: who answers holds up nobody.
create function pgfence.answer_unknown(
    p_resource text, p_operation_root text, p_segment_seq bigint, p_answer text, p_evidence text, p_handler text default ''
)
returns pgfence.outcome
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := pg_catalog.clock_timestamp();
    v_outcome pgfence.outcome;
    v_reported boolean;
    v_before pgfence.unknown_mutations;
    v_lease pgfence_registry.grants;
    v_refused text;
begin
    perform pgfence._check_coordinates('answer_unknown', p_resource, p_operation_root, p_segment_seq, null);
    if (p_answer in ('APPLIED', 'NOT_APPLIED', 'ASK_A_PERSON') and pg_catalog.length(p_evidence) between 1 and 4000
        and pg_catalog.length(p_handler) <= 255) is not true then
        perform pgfence._raise('INVALID_ARGUMENT',
            'answer_unknown: the answer is APPLIED, NOT_APPLIED or ASK_A_PERSON, with evidence of 1 to 4000 characters',
            'Say what shows it: who comes later has nothing else.', 'R45');
    end if;
    v_outcome := pgfence._find_outcome(p_resource, p_operation_root, p_segment_seq, null);
    if pgfence._workload_of_session() is distinct from v_outcome.owner and not pgfence._session_may_act_as('pgfence_owner'::regrole) then
        perform pgfence._raise('NOT_OWNER',
            pg_catalog.format('role %I may not answer: the operation is not of its workload, and it is no member of pgfence_owner', session_user),
            'Log in as a role of the workload, or as an operator.', 'R45');
    elsif v_outcome.reason = 'UNKNOWN_OPERATION' then
        perform pgfence._raise('INVALID_ARGUMENT', 'answer_unknown: ' || v_outcome.explanation, v_outcome.ask, 'R45');
    end if;

    v_reported := exists (
        select from pgfence.unknown_mutations as u
         where u.resource = p_resource and u.operation_root = p_operation_root and u.segment_seq = p_segment_seq
           and u.reported_at is not null);
    -- Before the fence row: whoever waits for another answer's open transaction has no lock that others need.
    insert into pgfence.unknown_mutations as u
        (resource, operation_root, segment_seq, fence_token, workload, answer, evidence, handler, answered_at, answered_by)
    values (p_resource, p_operation_root, p_segment_seq, v_outcome.fence_token, v_outcome.owner, p_answer, p_evidence, p_handler,
            v_now, session_user)
    on conflict (resource, operation_root, segment_seq) do update
       set answer = excluded.answer, evidence = excluded.evidence, handler = excluded.handler,
           answered_at = excluded.answered_at, answered_by = excluded.answered_by
     where u.answer is null or u.answer = 'ASK_A_PERSON';
    if not found then
        select u.* into strict v_before from pgfence.unknown_mutations as u
         where u.resource = p_resource and u.operation_root = p_operation_root and u.segment_seq = p_segment_seq;
        if v_before.answer <> p_answer then
            perform pgfence._raise('DECISION_REFUSED',
                pg_catalog.format('%s is not the answer: %s has answered %s', p_answer, v_before.answered_by, v_before.answer),
                'pgfence.unknown_mutations has that answer, with its evidence.', 'R45',
                pg_catalog.jsonb_build_object('answer', v_before.answer, 'handler', v_before.handler,
                    'answered_by', v_before.answered_by, 'answered_at', v_before.answered_at));
        end if;
    end if;
    begin
        perform from pgfence.fences as f where f.resource = p_resource for no key update;
        v_outcome := pgfence._find_outcome(p_resource, p_operation_root, p_segment_seq, null);
        if v_outcome.reason in ('LEASE_OVER', 'IN_SHADOW') and p_answer = 'NOT_APPLIED' then
            -- A locked grant row is a renewal in flight; who waited for it could be waited for.
            select g.* into v_lease
              from pgfence_registry.grants as g
             where g.resource = p_resource and g.fence_token = v_outcome.fence_token
               and pgfence_registry._state_of(g, pg_catalog.clock_timestamp()) <> 'HELD' for update skip locked;
        end if;
        v_refused := case
            when v_outcome.outcome = 'ACCEPTED' and p_answer = 'NOT_APPLIED' then v_outcome.explanation
            when v_outcome.outcome = 'PROVEN_NOT_APPLIED' and p_answer = 'APPLIED' and v_reported then v_outcome.explanation
            when v_outcome.reason = 'LEASE_HELD' and p_answer <> 'ASK_A_PERSON' then v_outcome.explanation
            when v_outcome.reason = 'LEASE_OVER' and p_answer = 'NOT_APPLIED' and v_lease.lease is null
                then 'the lease is just being renewed'
            when v_outcome.reason = 'IN_SHADOW' and p_answer = 'NOT_APPLIED' and v_lease.lease is null
                 and exists (select from pgfence_registry.grants as g join pgfence.fences as f on f.resource = g.resource
                              where g.resource = p_resource and g.fence_token = v_outcome.fence_token
                                and f.highest_fence <= g.fence_token and g.state = 'HELD')
                then 'the lease is held: it may still come'
        end;
        if v_refused is not null then
            perform pgfence._raise('DECISION_REFUSED', pg_catalog.format('%s is not the answer: %s', p_answer, v_refused),
                'Reconcile again: the database knows better than the answer.', 'R45',
                pg_catalog.jsonb_build_object('outcome', v_outcome.outcome, 'reason', v_outcome.reason));
        end if;
        if (v_lease.state = 'HELD') is not true then
            raise exception using errcode = 'PF999', message = 'undo the locks';
        end if;
        -- Over, and nobody has it since: this decides that nobody will. From here on the locks are kept.
        if pgfence._shadow_prefix(p_resource) is null then
            perform pgfence._limit_transaction(v_now + interval '5 seconds');
        end if;
        update pgfence_registry.grants as g set state = 'SUPERSEDED', ended_at = g.lease_ends_at where g.lease = v_lease.lease;
        update pgfence.fences as f set current_lease = null where f.resource = p_resource and f.current_lease = v_lease.lease;
    exception
        when sqlstate 'PF999' then  -- PF000 would be every error of the class
            null;
    end;
    if not v_reported and p_segment_seq <> 1 + greatest(0,
           (pgfence._operation_of(p_resource, p_operation_root)).pruned_segments,
           (select max(r.segment_seq) from pgfence.receipts as r
             where r.resource = p_resource and r.fence_token = v_outcome.fence_token)) then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('answer_unknown: nobody has asked what became of segment %s of %s', p_segment_seq, p_resource),
            'pgfence.unknown_outcomes() shows what is unknown.', 'R45');
    end if;
    raise log 'pgfence answered %: session_role=% handler=% resource=% fence_token=% segment_seq=% evidence=%', p_answer,
        pg_catalog.quote_ident(session_user), pg_catalog.to_json(p_handler), p_resource, v_outcome.fence_token, p_segment_seq,
        pg_catalog.to_json(p_evidence);
    return v_outcome;
end
$$;
-- next statement
revoke all on function pgfence.answer_unknown(text, text, bigint, text, text, text) from public;
-- next statement
grant execute on function pgfence.answer_unknown(text, text, bigint, text, text, text) to pgfence_app;
-- next statement
comment on function pgfence.answer_unknown(text, text, bigint, text, text, text) is
    'Records who says what became of a segment, and on what evidence (R45). Raises PF105, PF301, and PF307 for an answer against what the database knows, or against an earlier one; 40001, 40P01, 55P03, 57014, 25P03 and 25P04 pass through.';
