-- %(receipts)s receipts in all, those of earlier fences, evenly over the resources. As pgfence_owner.
insert into pgfence.receipts
    (resource, fence_token, segment_seq, operation_root, grant_digest, payload_digest, session_role, accepted_at,
     previous_digest, digest)
select f.resource, 0, s, 'sha256:' || repeat('0', 64), f.grant_digest, f.grant_digest, 'worker_a', now(),
       f.grant_digest, f.grant_digest
  from (select resource, grant_digest from pgfence.fences order by resource) as f,
       generate_series(1, %(receipts)s / (select count(*) from pgfence.fences)) as s;
