-- Leaves evidence of what was refused, or in shadow would have been (R18, R28). The log line is written
-- in any case, so that a rollback cannot take it away. The row goes to the slot of the same kind of
-- attempt, else to the oldest one, but a login role that has 128 slots pushes out only its own; slots
-- that another transaction holds are passed over, so recording never waits. Outside READ COMMITTED
-- updating a slot would end in 40001: there the log line is all.
--
-- p_once: count a transaction and not its statements, of which there may be one for each row.
create function pgfence._record_refusal(
    p_verdict text, p_reason text, p_grant pgfence._grant, p_grant_digest bytea, p_authenticated boolean,
    p_segment_seq bigint, p_shadow_prefix text, p_table text default null, p_once boolean default false
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_in_shadow constant boolean := p_shadow_prefix is not null;
    v_attempt bytea := pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.concat_ws(' ', p_verdict, p_reason,
        pg_catalog.encode(p_grant_digest, 'hex'), session_user, p_shadow_prefix, p_table), 'UTF8'));
    v_records constant boolean := pg_catalog.current_setting('transaction_isolation') in ('read committed', 'read uncommitted');
begin
    if p_once and v_records then
        if exists (select from pgfence.refusals as r
                    where r.attempt = v_attempt and r.in_shadow = v_in_shadow
                      and r.last_transaction = pg_catalog.pg_current_xact_id_if_assigned()) then
            return;
        end if;
    end if;
    raise log 'pgfence % % %: session_role=% resource=% fence_token=% segment_seq=% grant=%',
        case when v_in_shadow then 'would refuse' else 'refused' end,
        p_verdict, coalesce(p_reason, p_table, ''), pg_catalog.quote_ident(session_user),
        coalesce(p_grant.resource, '-'), coalesce(p_grant.fence_token::text, '-'), coalesce(p_segment_seq::text, '-'),
        coalesce(pg_catalog.encode(p_grant_digest, 'hex'), '-');
    if v_records then
        update pgfence.refusals as r
           set occurrences = r.occurrences + 1, last_at = pg_catalog.clock_timestamp(),
               last_segment_seq = p_segment_seq, last_transaction = pg_catalog.pg_current_xact_id(),
               resource = p_grant.resource
         where r.slot = (select s.slot from pgfence.refusals as s
                          where s.attempt = v_attempt and s.in_shadow = v_in_shadow and s.authenticated = p_authenticated
                          limit 1 for update skip locked);
        if not found then
            update pgfence.refusals as r
               set attempt = v_attempt, verdict = p_verdict, reason = p_reason, session_role = session_user,
                   resource = p_grant.resource, fence_token = p_grant.fence_token, owner = p_grant.owner,
                   grant_digest = p_grant_digest, last_segment_seq = p_segment_seq, occurrences = 1,
                   shadow_prefix = p_shadow_prefix, written_table = p_table,
                   last_transaction = pg_catalog.pg_current_xact_id(),
                   first_at = pg_catalog.clock_timestamp(), last_at = pg_catalog.clock_timestamp()
             where r.slot = (select s.slot from pgfence.refusals as s
                              where s.in_shadow = v_in_shadow and s.authenticated = p_authenticated
                                and (s.session_role = session_user
                                     or (select pg_catalog.count(*) from pgfence.refusals as c
                                          where c.in_shadow = v_in_shadow and c.authenticated = p_authenticated
                                            and c.session_role = session_user) < 128)
                              order by s.last_at nulls first limit 1 for update skip locked);
        end if;
    end if;
end
$$;
-- next statement
revoke all on function pgfence._record_refusal(text, text, pgfence._grant, bytea, boolean, bigint, text, text, boolean) from public;
-- next statement
comment on function pgfence._record_refusal(text, text, pgfence._grant, bytea, boolean, bigint, text, text, boolean) is
    'Writes a refusal, or in shadow a would-be refusal, to the server log and to a bounded row (R18, R28).';
