-- Fence row and receipt by hand: nothing is verified, and nothing keeps others from writing.
\if :n < 0
select last_segment as n from hand_fences where resource = 'batch/' || :client_id \gset
\endif
\set n :n + 1
begin;
update hand_fences set last_segment = :n
 where resource = 'batch/' || :client_id and fence_token = 1 and last_segment = :n - 1;
insert into hand_receipts (resource, fence_token, segment_seq, payload_digest)
values ('batch/' || :client_id, 1, :n, sha256('{"page": 1}'));
update free_invoices set settled = settled + 1 where id = :client_id;
commit;
