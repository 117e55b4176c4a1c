-- After the full check: moves the fence row and the chain of receipts on to the segment, admits the
-- resource in this very transaction (R24), and remembers what was found for the next segment. The first
-- admission in a transaction fixes when it must end, also if the lease is renewed since (R20).
create function pgfence._admit(
    p_grant text, p_known pgfence._authentication, p_segment_seq bigint, p_payload_digest bytea,
    p_configuration pgfence.configuration, p_lease_ends_at timestamptz
)
returns pgfence._admission
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_in_shadow constant boolean := pgfence._shadow_prefix((p_known.grant_claims).resource) is not null;
    v_accepted_at constant timestamptz := pg_catalog.clock_timestamp();
    v_admission pgfence._admission;
begin
    update pgfence.fences as f
       set last_segment = p_segment_seq,
           receipt_count = f.receipt_count + 1,
           previous_digest = f.last_digest,
           last_digest = pgfence._receipt_digest(f.last_digest, f.resource, f.highest_fence, p_segment_seq, f.operation_root,
                             f.grant_digest, p_payload_digest, v_accepted_at, session_user),
           -- no shortcut for another token than the registry's own: with a distant registry every segment
           -- needs a look at its status proof; nor in shadow, which is for the text alone (R28)
           checked_hash = (select pg_catalog.hashtextextended(g.token, 0) from pgfence_registry.grants as g
                            where g.lease = f.current_lease and g.token = p_grant
                              and p_configuration.registry_is_local and not v_in_shadow),
           -- nor for a role that is several workloads, each known by how its sessions were authenticated (R6)
           checked_role = (select session_user::text
                            where not exists (select from pgfence.workload_roles as w
                                               where w.role_name = session_user and w.authenticated_as <> '')),
           checked_server = pgfence._this_server(),
           checked_version = p_configuration.version,
           checked_until = p_known.key_expires_at,
           admitted_transaction = pg_catalog.pg_current_xact_id(),
           admitted_transaction_start = current_timestamp,
           admitted_backend = pg_catalog.pg_backend_pid(),
           admitted_until = case when pgfence._is_admitted(f) then f.admitted_until else p_lease_ends_at end,
           commit_look = 0
     where f.resource = (p_known.grant_claims).resource
    returning f.resource, f.highest_fence, f.operation_root, f.grant_digest, f.previous_digest, f.last_digest,
              v_accepted_at, f.checked_version, case when not v_in_shadow then f.admitted_until end,
              least(f.admitted_until, f.checked_until)
    into strict v_admission;
    return v_admission;
end
$$;
-- next statement
revoke all on function pgfence._admit(text, pgfence._authentication, bigint, bytea, pgfence.configuration, timestamptz) from public;
-- next statement
comment on function pgfence._admit(text, pgfence._authentication, bigint, bytea, pgfence.configuration, timestamptz) is
    'Admits a segment in this transaction (R20, R24).';
