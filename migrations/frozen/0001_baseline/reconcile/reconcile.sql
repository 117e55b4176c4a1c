-- What became of a segment whose COMMIT was not answered (R45). For the workload whose operation it is, for
-- who holds a newer grant of the resource, and for members of pgfence_owner. Where nothing is proven yet it
-- looks under the fence row lock, so that a commit on its way comes before the answer or not at all, and
-- gives the lock back at once, by undoing it: what is proven holds without it, and who asks holds up nobody.
-- A newer grant of the caller's then raises the fence, so that no commit can come any more; p_status shows
-- that it is held, where the registry is in another database.
create function pgfence.reconcile(
    p_resource text, p_operation_root text, p_segment_seq bigint, p_payload_digest text default null, p_grant text default null,
    p_status text default null
)
returns pgfence.outcome
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_digest bytea;
    v_known pgfence._authentication;
    v_newer boolean;
    v_caller constant text := pgfence._workload_of_session();
    v_outcome pgfence.outcome;
    v_verdict pgfence.verdict;
begin
    perform pgfence._check_coordinates('reconcile', p_resource, p_operation_root, p_segment_seq, p_payload_digest);
    v_digest := pg_catalog.decode(p_payload_digest, 'hex');
    if p_grant is not null then
        v_known := pgfence._authenticate(p_grant collate "C");
        if (v_known.grant_claims).resource <> p_resource then
            perform pgfence._raise('INVALID_ARGUMENT',
                pg_catalog.format('reconcile: the grant is for %s, not for %s', (v_known.grant_claims).resource, p_resource),
                'Pass a grant of the resource that is asked about.', 'R45');
        end if;
    end if;
    v_outcome := pgfence._find_outcome(p_resource, p_operation_root, p_segment_seq, v_digest);
    if v_outcome.reason = 'UNKNOWN_OPERATION' then
        return v_outcome;
    end if;
    -- Asked before the lock: a stranger does not even wait for it.
    v_newer := v_known.refused is null and (v_known.grant_claims).audience = v_known.audience
               and (v_known.grant_claims).fence_token > v_outcome.fence_token;
    if v_caller is distinct from v_outcome.owner
       and (v_newer and v_caller = (v_known.grant_claims).owner) is not true
       and not pgfence._session_may_act_as('pgfence_owner'::regrole) then
        return row('UNRESOLVED', 'NOT_YOURS',
            pg_catalog.format('role %I may not ask: it belongs neither to the workload nor to pgfence_owner, and brings no newer grant of %s',
                session_user, p_resource),
            pg_catalog.format('workload %s, whose operation it is', v_outcome.owner),
            p_resource, p_operation_root, p_segment_seq, v_outcome.fence_token, v_outcome.owner, p_payload_digest,
            null, null, null)::pgfence.outcome;
    end if;

    if v_outcome.outcome = 'UNRESOLVED' then
        begin
            perform from pgfence.fences as f where f.resource = p_resource for no key update;
            v_outcome := pgfence._find_outcome(p_resource, p_operation_root, p_segment_seq, v_digest);
            raise exception using errcode = 'PF999', message = 'undo the lock';
        exception
            when sqlstate 'PF999' then
                null;
        end;
        if v_outcome.reason in ('LEASE_HELD', 'LEASE_OVER') and p_grant is not null
           and ((v_known.grant_claims).fence_token > v_outcome.fence_token) is not false then
            v_verdict := (pgfence._decide(p_grant collate "C", null, null, p_status collate "C")).answer;
            v_outcome := pgfence._find_outcome(p_resource, p_operation_root, p_segment_seq, v_digest);
            if v_outcome.outcome = 'UNRESOLVED' then
                v_outcome.reason := 'GRANT_REFUSED';
                v_outcome.explanation := pg_catalog.format('%s; the grant that should prove that it cannot is refused: %s (%s)',
                    v_outcome.explanation, v_verdict.verdict, v_verdict.explanation);
            end if;
        end if;
    end if;
    if v_outcome.outcome in ('ACCEPTED', 'PROVEN_NOT_APPLIED') then
        -- A locked row is an answer in an open transaction: nobody waits for it.
        delete from pgfence.unknown_mutations as d
         where d.ctid in (
               select u.ctid from pgfence.unknown_mutations as u
                where u.resource = p_resource and u.operation_root = p_operation_root and u.segment_seq = p_segment_seq
                  and u.reported_at is not null and (u.answer is null or u.answer = 'ASK_A_PERSON')
                  for update skip locked);
        if found then
            raise log 'pgfence reconciled %: session_role=% resource=% fence_token=% segment_seq=%', v_outcome.outcome,
                pg_catalog.quote_ident(session_user), p_resource, v_outcome.fence_token, p_segment_seq;
        end if;
    end if;
    return v_outcome;
end
$$;
-- next statement
revoke all on function pgfence.reconcile(text, text, bigint, text, text, text) from public;
-- next statement
grant execute on function pgfence.reconcile(text, text, bigint, text, text, text) to pgfence_app;
-- next statement
comment on function pgfence.reconcile(text, text, bigint, text, text, text) is
    'What became of a segment: ACCEPTED, PROVEN_NOT_APPLIED, PAYLOAD_CONFLICT or UNRESOLVED, and whom to ask (R45). Waits for an open transaction on the resource. Raises PF301; 40001, 40P01, 55P03, 57014, 25P03 and 25P04 pass through.';
