-- fenced_apply alone, on many resources in turn: :n counts the segments of all of them.
\if :n < 0
select sum(p.last_segment)::bigint as n, count(*) as resources from tokens as t, pgfence.position(t.resource) as p \gset
\endif
select a.verdict from tokens as t, pgfence.fenced_apply(t.token, :n::bigint / :resources::bigint + 1, '{"page": 1}') as a
 where t.n = :n::bigint % :resources::bigint;
\set n :n + 1
