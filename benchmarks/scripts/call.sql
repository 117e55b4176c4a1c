-- The same in one call of a user's function.
\if :n < 0
select t.token, p.last_segment as n from tokens as t, pgfence.position(t.resource) as p where t.n = :client_id \gset
\endif
\set n :n + 1
select settle(:token, :n, '{"page": 1}', :client_id);
