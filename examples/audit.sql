-- Was every customer charged what was due?
select 'unfenced' as run, count(*) as invoices,
       count(*) filter (where charged_cents <> due_cents) as wrong,
       sum(due_cents) as due_cents, sum(charged_cents) as charged_cents
  from unfenced.settlement where batch_date = '2026-07-19'
union all
select 'fenced', count(*),
       count(*) filter (where charged_cents <> due_cents),
       sum(due_cents), sum(charged_cents)
  from fenced.settlement where batch_date = '2026-07-19';

-- Who wrote which segment?
select r.fence_token, r.segment_seq, o.owner, r.accepted_at,
       left(encode(r.digest, 'hex'), 16) as receipt
  from pgfence.receipts as r
  join pgfence.operations as o on o.resource = r.resource and o.fence_token = r.fence_token
 where r.resource = 'invoice-batch/2026-07-19'
 order by r.fence_token, r.segment_seq;

-- Is the chain of receipts whole?
select receipts, ok, problem from pgfence.verify_receipts('invoice-batch/2026-07-19');

-- Who holds the batch, and who held it before?
select fence_token, owner, state, granted_at, lease_ends_at, ended_at
  from pgfence_registry.grants where resource = 'invoice-batch/2026-07-19'
 order by fence_token;

-- What was refused, and to whom?
select verdict, session_role, owner, fence_token, last_segment_seq as segment, occurrences, last_at
  from pgfence.refusals where resource = 'invoice-batch/2026-07-19'
 order by last_at desc;
