-- What can be said of a segment from what is committed: the rules of R45 in order. ACCEPTED and
-- PROVEN_NOT_APPLIED stay true for good (R17, R22); UNRESOLVED is as of now, and in doubt the fence row must
-- be locked first, or the segment may be on its way in an open transaction. p_payload_digest: the caller's;
-- null takes the reported one.
create function pgfence._find_outcome(
    p_resource text, p_operation_root text, p_segment_seq bigint, p_payload_digest bytea
)
returns pgfence.outcome
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_operation constant record := pgfence._operation_of(p_resource, p_operation_root);
    v_digest constant bytea := coalesce(p_payload_digest, (
        select u.payload_digest from pgfence.unknown_mutations as u
         where u.resource = p_resource and u.operation_root = p_operation_root and u.segment_seq = p_segment_seq));
    v_what constant text := pg_catalog.format('segment %s of %s under fence %s', p_segment_seq, p_resource, v_operation.fence_token);
    v_receipt pgfence.receipts;
    v_highest_fence bigint;
    v_lease pgfence_registry.grants;
    v_outcome pgfence.outcome;
begin
    v_outcome.outcome := 'UNRESOLVED';
    v_outcome.resource := p_resource;
    v_outcome.operation_root := p_operation_root;
    v_outcome.segment_seq := p_segment_seq;
    v_outcome.fence_token := v_operation.fence_token;
    v_outcome.owner := v_operation.owner;
    v_outcome.payload_digest := pg_catalog.encode(v_digest, 'hex');
    if v_operation.fence_token is null then
        v_outcome.reason := 'UNKNOWN_OPERATION';
        v_outcome.explanation := pg_catalog.format('this database has never heard of operation %s on %s', p_operation_root, p_resource);
        v_outcome.ask := 'the DBA: is this the right database, and was it put back to an earlier state?';
        return v_outcome;
    end if;

    select r.* into v_receipt from pgfence.receipts as r
     where r.resource = p_resource and r.fence_token = v_operation.fence_token and r.segment_seq = p_segment_seq
       and r.operation_root = p_operation_root;
    if found then
        v_outcome.receipt := pg_catalog.encode(v_receipt.digest, 'hex');
        v_outcome.grant_digest := pg_catalog.encode(v_receipt.grant_digest, 'hex');
        v_outcome.payload_digest := pg_catalog.encode(v_receipt.payload_digest, 'hex');
        v_outcome.accepted_at := v_receipt.accepted_at;
        if v_receipt.payload_digest = coalesce(v_digest, v_receipt.payload_digest) then
            v_outcome.outcome := 'ACCEPTED';
            v_outcome.explanation := v_what || ' was accepted: its receipt stands';
        else
            v_outcome.outcome := 'PAYLOAD_CONFLICT';
            v_outcome.explanation := pg_catalog.format('%s was accepted with another payload (SHA-256 %s): the one asked about (SHA-256 %s) was not applied',
                v_what, pg_catalog.encode(v_receipt.payload_digest, 'hex'), pg_catalog.encode(v_digest, 'hex'));
            v_outcome.ask := pg_catalog.format('workload %s: it gave one segment two payloads', v_operation.owner);
        end if;
        return v_outcome;
    end if;

    v_outcome.ask := pg_catalog.format('a domain handler of workload %s, or a person who can see what the segment did', v_operation.owner);
    if p_segment_seq <= v_operation.pruned_segments then
        v_outcome.reason := 'PRUNED';
        v_outcome.explanation := v_what || ' lies in a stretch whose receipts were pruned';
        return v_outcome;
    end if;
    -- Granted before the longest prefix was enforced, while this one or a shorter one was in shadow?
    if exists (select from pgfence.rollout as r
                where r.prefix <= p_resource and pg_catalog.starts_with(p_resource, r.prefix)
               having pg_catalog.bool_or(r.shadow_since is not null)
                  and ((pg_catalog.array_agg(r.enforced_since order by r.prefix desc))[1] <= v_operation.granted_at) is not true) then
        v_outcome.reason := 'IN_SHADOW';
        v_outcome.explanation := pg_catalog.format('%s has no receipt, but %s was in shadow, where rows are written without one', v_what, p_resource);
        return v_outcome;
    end if;

    select f.highest_fence into v_highest_fence from pgfence.fences as f where f.resource = p_resource;
    if v_highest_fence > v_operation.fence_token then
        v_outcome.outcome := 'PROVEN_NOT_APPLIED';
        v_outcome.ask := null;
        v_outcome.explanation := pg_catalog.format(
            '%s has no receipt, and fence %s has written since, so it cannot come any more; what its work did outside this database is not undone',
            v_what, v_highest_fence);
        return v_outcome;
    end if;
    select g.* into v_lease from pgfence_registry.grants as g where g.lease = v_operation.lease;
    if v_lease.lease is null or pgfence_registry._state_of(v_lease, pg_catalog.clock_timestamp()) = 'HELD' then
        v_outcome.reason := 'LEASE_HELD';
        v_outcome.explanation := pg_catalog.format('%s has no receipt yet, and its lease%s is not known to be over: it may still come',
            v_what, ' (to ' || v_lease.lease_ends_at || ')');
        v_outcome.ask := pg_catalog.format(
            'workload %s: it applies the same segment with the same payload again, which is applied once', v_operation.owner);
    else
        v_outcome.reason := 'LEASE_OVER';
        v_outcome.explanation := pg_catalog.format('%s has no receipt, its lease is over (%s), and no newer fence has written yet',
            v_what, pgfence_registry._state_of(v_lease, pg_catalog.clock_timestamp()));
        v_outcome.ask := pg_catalog.format(
            'the next owner of %s: its first segment, advance(), or reconcile() with its grant proves that this one was not applied', p_resource);
    end if;
    return v_outcome;
end
$$;
revoke all on function pgfence._find_outcome(text, text, bigint, bytea) from public;
comment on function pgfence._find_outcome(text, text, bigint, bytea) is
    'Outcome of a segment from what is committed; locks nothing (R45).';
