-- Leaves evidence of a refusal and answers it (R18). A grant digest means that the signature was
-- good. The log line is written in any case, so that a rollback cannot take it away. The row goes
-- to the slot of the same kind of attempt, else to the oldest one, but a login role that has 128 slots
-- pushes out only its own; slots that another transaction holds are passed over, so recording never
-- waits. Outside READ COMMITTED updating a slot would end in 40001: there the log line is all.
create function pgfence._refuse(
    p_verdict text, p_reason text, p_explanation text,
    p_grant pgfence._grant, p_grant_digest bytea, p_fence pgfence.fences,
    p_segment_seq bigint, p_payload_digest bytea
)
returns pgfence.verdict
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_authenticated boolean := p_grant_digest is not null;
    v_attempt bytea := pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.concat_ws(' ', p_verdict, p_reason,
        pg_catalog.encode(p_grant_digest, 'hex'), session_user), 'UTF8'));
    v_verdict pgfence.verdict;
begin
    raise log 'pgfence refused % %: session_role=% resource=% fence_token=% segment_seq=% grant=%',
        p_verdict, coalesce(p_reason, ''), pg_catalog.quote_ident(session_user),
        coalesce(p_grant.resource, '-'), coalesce(p_grant.fence_token::text, '-'), coalesce(p_segment_seq::text, '-'),
        coalesce(pg_catalog.encode(p_grant_digest, 'hex'), '-');
    if pg_catalog.current_setting('transaction_isolation') in ('read committed', 'read uncommitted') then
        update pgfence.refusals as r
           set occurrences = r.occurrences + 1, last_at = pg_catalog.clock_timestamp(),
               last_segment_seq = p_segment_seq
         where r.slot = (select s.slot from pgfence.refusals as s
                          where s.attempt = v_attempt and s.authenticated = v_authenticated
                          limit 1 for update skip locked);
        if not found then
            update pgfence.refusals as r
               set attempt = v_attempt, verdict = p_verdict, reason = p_reason, session_role = session_user,
                   resource = p_grant.resource, fence_token = p_grant.fence_token, owner = p_grant.owner,
                   grant_digest = p_grant_digest, last_segment_seq = p_segment_seq, occurrences = 1,
                   first_at = pg_catalog.clock_timestamp(), last_at = pg_catalog.clock_timestamp()
             where r.slot = (select s.slot from pgfence.refusals as s
                              where s.authenticated = v_authenticated
                                and (s.session_role = session_user
                                     or (select pg_catalog.count(*) from pgfence.refusals as c
                                          where c.authenticated = v_authenticated and c.session_role = session_user) < 128)
                              order by s.last_at nulls first limit 1 for update skip locked);
        end if;
    end if;
    v_verdict.verdict := p_verdict;
    v_verdict.reason := p_reason;
    v_verdict.explanation := p_explanation;
    v_verdict.resource := p_grant.resource;
    v_verdict.fence_token := p_grant.fence_token;
    v_verdict.segment_seq := p_segment_seq;
    v_verdict.highest_fence := p_fence.highest_fence;
    v_verdict.last_segment := p_fence.last_segment;
    v_verdict.payload_digest := pg_catalog.encode(p_payload_digest, 'hex');
    return v_verdict;
end
$$;
-- next statement
revoke all on function pgfence._refuse(text, text, text, pgfence._grant, bytea, pgfence.fences, bigint, bytea)
    from public;
-- next statement
comment on function pgfence._refuse(text, text, text, pgfence._grant, bytea, pgfence.fences, bigint, bytea) is
    'Records a refusal in the server log and a bounded row, and returns it as a verdict (R18).';
