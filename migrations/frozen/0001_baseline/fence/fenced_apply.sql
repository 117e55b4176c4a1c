-- The entry point of every protected write. Answers a verdict; only ACCEPTED admits the resource,
-- and only until this transaction ends. The guard makes ignoring a refusal harmless.
--
-- One text of the rules, two speeds. pgfence._decide() is the text: it takes every check in turn.
-- It leaves in the fence row which token passed, for which login role, until when and by which
-- version of bundle, policy and workloads. While all of that still holds, the next segment of the
-- same grant is accepted by one UPDATE whose WHERE asks for it; any doubt goes to the text.
create function pgfence.fenced_apply(
    p_grant text, p_segment_seq bigint, p_payload text, p_status text default null
)
returns pgfence.verdict
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_payload_digest bytea;
    v_fence pgfence.fences;
    v_version bigint;
begin
    if p_grant is null or p_segment_seq is null or p_payload is null or p_segment_seq < 1 then
        perform pgfence._raise('INVALID_ARGUMENT',
            case when p_grant is null then 'fenced_apply: p_grant is NULL'
                 when p_segment_seq is null then 'fenced_apply: p_segment_seq is NULL'
                 when p_payload is null then 'fenced_apply: p_payload is NULL'
                 else pg_catalog.format('fenced_apply: segment %s is below 1', p_segment_seq) end,
            'Pass the grant token, a segment number from 1 on, and a payload ('''' is one).', 'R5');
    end if;
    v_payload_digest := pg_catalog.sha256(pg_catalog.convert_to(p_payload, 'UTF8'));
    -- Outside READ COMMITTED the configuration must be locked (R9): that is for the text.
    if p_status is not null or pg_catalog.current_setting('transaction_isolation') <> 'read committed' then
        return pgfence._decide(p_grant collate "C", p_segment_seq, v_payload_digest, p_status collate "C");
    end if;

    select c.version into v_version
      from pgfence.configuration as c join pg_catalog.pg_database as d on d.oid = c.database_oid
     where d.datname = pg_catalog.current_database()                                                  -- R7
       and c.timeline = pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8);
    update pgfence.fences as f
       set last_segment = p_segment_seq,
           receipt_count = f.receipt_count + 1,
           admitted_transaction = pg_catalog.pg_current_xact_id(),
           admitted_transaction_start = pg_catalog.transaction_timestamp(),
           admitted_backend = pg_catalog.pg_backend_pid(),
           admitted_until = case when f.admitted_transaction = pg_catalog.pg_current_xact_id()
                                      and f.admitted_transaction_start = pg_catalog.transaction_timestamp()
                                      and f.admitted_backend = pg_catalog.pg_backend_pid()
                                 then f.admitted_until else g.lease_ends_at end,
           commit_look = case when f.admitted_transaction = pg_catalog.pg_current_xact_id()
                                   and f.admitted_transaction_start = pg_catalog.transaction_timestamp()
                                   and f.admitted_backend = pg_catalog.pg_backend_pid()
                              then f.commit_look else 0 end
      from pgfence_registry.grants as g
     where f.checked_token = pg_catalog.sha256(pg_catalog.convert_to(p_grant, 'UTF8'))  -- R5, R11
       and f.checked_fence = f.highest_fence                                            -- R10
       and f.checked_version = v_version                                                -- R6, R7, R8
       and f.checked_server_start = pg_catalog.pg_postmaster_start_time()               -- R7
       and f.checked_until > pg_catalog.clock_timestamp()                               -- R4
       and f.checked_role = session_user                                                -- R6
       and f.paused_because is null                                                     -- R8
       and f.issued_fence = f.highest_fence and g.lease = f.current_lease               -- R13: not released,
       and g.lease_ends_at > pg_catalog.clock_timestamp()                               -- superseded or expired
       and f.last_segment = p_segment_seq - 1                                           -- R12, R14
    returning f.* into v_fence;
    if not found then
        return pgfence._decide(p_grant collate "C", p_segment_seq, v_payload_digest, null);
    end if;
    perform pgfence._attest_guards(v_fence.resource);
    -- Now that the lock is held: what may have changed while we waited for it (R9)? PostgreSQL looks at
    -- the WHERE again only when the one who held the lock has changed the row.
    if pg_catalog.clock_timestamp() >= least(v_fence.admitted_until, v_fence.checked_until)
       or not exists (select from pgfence.configuration as c where c.version = v_version) then
        raise exception using errcode = 'serialization_failure',
            message = pg_catalog.format('lease, bundle, policies or workloads changed while the call waited for %s', v_fence.resource),
            hint = 'Try the transaction again.', constraint = 'R9';
    end if;
    perform pgfence._limit_transaction(v_fence.admitted_until);
    return pgfence._verdict_of('ACCEPTED',
        pgfence._write_receipt(v_fence, p_segment_seq, v_payload_digest, pg_catalog.clock_timestamp()), v_fence);
end
$$;
-- next statement
revoke all on function pgfence.fenced_apply(text, bigint, text, text) from public;
-- next statement
grant execute on function pgfence.fenced_apply(text, bigint, text, text) to pgfence_app;
-- next statement
comment on function pgfence.fenced_apply(text, bigint, text, text) is
    'Accepts one segment of a grant''s operation and admits its resource in this transaction, or answers why not (R5 to R16). Raises PF301 for a NULL or a segment below 1, PF202 when a guard is missing, and at COMMIT PF203 when the lease has ended; 40001, 40P01, 55P03, 57014, 25P03 and 25P04 pass through.';
