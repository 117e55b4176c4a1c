-- A worker says that the COMMIT of its segment was not answered (R44). The grant says whose segment it was:
-- it need not be held any more. Again: nothing, but that a later grant of the same root counts. Takes no lock
-- that a segment waits for. False when nothing more is noted, because the operation has 64 rows already.
create function pgfence.report_unknown(p_grant text, p_segment_seq bigint, p_payload_digest text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_known pgfence._authentication;
    v_grant pgfence._grant;
begin
    if (p_grant is not null and p_segment_seq >= 1 and pgfence._is_digest(p_payload_digest)) is not true then
        perform pgfence._raise('INVALID_ARGUMENT', 'report_unknown: an argument is missing or out of range',
            'Pass the grant, the segment from 1 on, and the SHA-256 of the payload in hex.', 'R44');
    end if;
    v_known := pgfence._authenticate(p_grant collate "C");
    v_grant := v_known.grant_claims;
    if v_known.refused is not null then
        perform pgfence._raise(v_known.refused, v_known.explanation, 'Pass the grant as the registry gave it.', 'R44');
    elsif v_grant.audience <> v_known.audience then
        perform pgfence._raise('WRONG_AUDIENCE', pg_catalog.format('the grant was issued for database %s', v_grant.audience),
            'Report to the database that was written to.', 'R44');
    elsif pgfence._workload_of_session() is distinct from v_grant.owner then
        perform pgfence._raise('NOT_OWNER', pg_catalog.format('role %I does not belong to workload %s', session_user, v_grant.owner),
            'Only the workload that owns the grant reports.', 'R44');
    end if;
    raise log 'pgfence unknown: session_role=% resource=% fence_token=% segment_seq=% payload=%',
        pg_catalog.quote_ident(session_user), v_grant.resource, v_grant.fence_token, p_segment_seq, p_payload_digest;
    insert into pgfence.unknown_mutations as n
        (resource, operation_root, segment_seq, fence_token, workload, payload_digest, reported_at, reported_by)
    select v_grant.resource, v_grant.operation_root, p_segment_seq, v_grant.fence_token, v_grant.owner,
           pg_catalog.decode(p_payload_digest, 'hex'), pg_catalog.clock_timestamp(), session_user
     where (select pg_catalog.count(*) from pgfence.unknown_mutations as u
             where u.resource = v_grant.resource and u.operation_root = v_grant.operation_root) < 64
       and not exists (select from pgfence.unknown_mutations as u
                        where u.resource = v_grant.resource and u.operation_root = v_grant.operation_root
                          and u.segment_seq = p_segment_seq and u.fence_token >= v_grant.fence_token)
    on conflict (resource, operation_root, segment_seq) do update set fence_token = excluded.fence_token
     where n.fence_token < excluded.fence_token;
    return found or exists (
        select from pgfence.unknown_mutations as u
         where u.resource = v_grant.resource and u.operation_root = v_grant.operation_root and u.segment_seq = p_segment_seq);
end
$$;
-- next statement
revoke all on function pgfence.report_unknown(text, bigint, text) from public;
-- next statement
grant execute on function pgfence.report_unknown(text, bigint, text) to pgfence_app;
-- next statement
comment on function pgfence.report_unknown(text, bigint, text) is
    'Notes a segment of the caller''s whose COMMIT was not answered, in pgfence.unknown_mutations (R44). Raises PF301, PF105, and what refuses the grant (PF101 to PF104).';
