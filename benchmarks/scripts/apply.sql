-- fenced_apply and the write to a guarded table, which fails if it was not ACCEPTED.
\if :n < 0
select t.token, p.last_segment as n from tokens as t, pgfence.position(t.resource) as p where t.n = :client_id \gset
\endif
\set n :n + 1
begin;
select verdict from pgfence.fenced_apply(:token, :n, '{"page": 1}');
update invoices set settled = settled + 1 where id = :client_id;
commit;
