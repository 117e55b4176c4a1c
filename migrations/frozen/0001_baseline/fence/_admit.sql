-- Accepts a segment after the full check: moves the fence row on, admits the resource in this very
-- transaction (R24), and writes the receipt (R15). The first admission in a transaction fixes when it
-- must end, also if the lease is renewed since (R20).
create function pgfence._admit(
    p_known pgfence._authentication, p_segment_seq bigint, p_payload_digest bytea, p_configuration pgfence.configuration,
    p_lease_ends_at timestamptz, p_now timestamptz
)
returns pgfence.verdict
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_resource constant text := (p_known.grant_claims).resource;
    v_fence pgfence.fences;
begin
    perform pgfence._attest_guards(v_resource);
    update pgfence.fences as f
       set last_segment = p_segment_seq,
           receipt_count = f.receipt_count + 1,
           checked_fence = f.highest_fence,
           -- with a distant registry every segment needs a look at its status proof
           checked_token = case when p_configuration.registry_is_local then p_known.token_digest end,
           checked_role = session_user,
           checked_until = p_known.key_expires_at,
           checked_version = p_configuration.version,
           checked_server_start = pg_catalog.pg_postmaster_start_time(),
           admitted_transaction = pg_catalog.pg_current_xact_id(),
           admitted_transaction_start = pg_catalog.transaction_timestamp(),
           admitted_backend = pg_catalog.pg_backend_pid(),
           admitted_until = case when pgfence._is_admitted(f) then f.admitted_until else p_lease_ends_at end,
           commit_look = case when pgfence._is_admitted(f) then f.commit_look else 0 end
     where f.resource = v_resource
    returning f.* into strict v_fence;
    perform pgfence._limit_transaction(v_fence.admitted_until);
    return pgfence._verdict_of('ACCEPTED',
        pgfence._write_receipt(v_fence, p_segment_seq, p_payload_digest, p_now), v_fence);
end
$$;
-- next statement
revoke all on function pgfence._admit(
    pgfence._authentication, bigint, bytea, pgfence.configuration, timestamptz, timestamptz) from public;
-- next statement
comment on function pgfence._admit(
    pgfence._authentication, bigint, bytea, pgfence.configuration, timestamptz, timestamptz) is
    'Writes the receipt of a segment and admits its resource in this transaction (R15, R20, R24). Raises PF202.';
