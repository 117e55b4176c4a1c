-- What is unknown now, the oldest first: commits that were not answered, and leases that ended without
-- release in the middle of an operation that nobody has taken up. A member of pgfence_auditor or
-- pgfence_owner sees all of it, a workload its own. Locks nothing; what is proven already is shown with its
-- outcome until reconcile() has taken note of it.
create function pgfence.unknown_outcomes()
returns table (
    kind text, since timestamptz, age_ms bigint, answer text, evidence text, answered_by text, outcome text, reason text,
    explanation text, ask text, resource text, operation_root text, segment_seq bigint, fence_token bigint, owner text,
    payload_digest text
)
language sql stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    with visible as (
        select pgfence._workload_of_session() as workload,
               pgfence._session_may_act_as('pgfence_auditor'::regrole)
               or pgfence._session_may_act_as('pgfence_owner'::regrole) as all_of_it
    ), unanswered as (
        select 'UNANSWERED_COMMIT' as kind, u.reported_at as since, u.answer, u.evidence, u.answered_by, o.outcome, o.reason,
               o.explanation, o.ask, u.resource, u.operation_root, u.segment_seq, u.fence_token, u.workload,
               pg_catalog.encode(u.payload_digest, 'hex') as payload_digest
          from visible as v
          join pgfence.unknown_mutations as u on v.all_of_it or u.workload = v.workload  -- nobody pays for others' rows
         cross join lateral pgfence._find_outcome(u.resource, u.operation_root, u.segment_seq, null) as o
         where u.reported_at is not null and (u.answer is null or u.answer = 'ASK_A_PERSON')
    ), half_done as (
        select 'EXPIRED_LEASE' as kind, least(g.ended_at, g.lease_ends_at) as since, u.answer, u.evidence, u.answered_by,
               'UNRESOLVED' as outcome, 'HALF_DONE' as reason,
               pg_catalog.format('the lease ended without release after segment %s of %s, and nobody has taken the operation up',
                   d.segment_seq, g.resource) as explanation,
               pg_catalog.format('workload %s: take it up (continues_root), or say that it is finished', g.owner) as ask,
               g.resource, p.operation_root, d.segment_seq + 1 as segment_seq, g.fence_token, g.owner as workload, null as payload_digest
          from visible as v
          join pgfence_registry.grants as g on v.all_of_it or g.owner = v.workload
          join pgfence.operations as p on p.resource = g.resource and p.fence_token = g.fence_token
         cross join lateral (
              select greatest(p.pruned_segments, (
                     select r.segment_seq from pgfence.receipts as r
                      where r.resource = g.resource and r.fence_token = g.fence_token
                      order by r.segment_seq desc limit 1)) as segment_seq) as d
          left join pgfence.unknown_mutations as u
            on u.resource = g.resource and u.operation_root = p.operation_root and u.segment_seq = d.segment_seq + 1
         where g.state <> 'RELEASED' and (g.state = 'SUPERSEDED' or g.lease_ends_at <= pg_catalog.clock_timestamp())
           and d.segment_seq > 0
           and u.reported_at is null and (u.answer is null or u.answer = 'ASK_A_PERSON')
           and not exists (select from pgfence.operations as c
                            where c.resource = g.resource and c.fence_token > g.fence_token
                              and c.continues_root = p.operation_root)
    )
    select a.kind, a.since,
           pg_catalog.floor(extract(epoch from pg_catalog.clock_timestamp() - a.since) * 1000)::bigint,
           a.answer, a.evidence, a.answered_by, a.outcome, a.reason, a.explanation, a.ask, a.resource, a.operation_root,
           a.segment_seq, a.fence_token, a.workload, a.payload_digest
      from (select * from unanswered union all select * from half_done) as a
     order by a.since, a.resource, a.segment_seq
$$;
-- next statement
revoke all on function pgfence.unknown_outcomes() from public;
-- next statement
grant execute on function pgfence.unknown_outcomes() to pgfence_app, pgfence_auditor;
-- next statement
comment on function pgfence.unknown_outcomes() is
    'What is unknown, the oldest first: unanswered commits, and operations whose lease ended half-way (R44, R45). Reads only.';
