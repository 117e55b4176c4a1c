-- Who may look names up in the schemas. What each role may do with them stands beside each object.
comment on schema pgfence is 'pgfence: fences, receipts and the guard of protected tables';
-- next statement
revoke all on schema pgfence from public;
-- next statement
grant usage on schema pgfence to pgfence_app, pgfence_registry, pgfence_auditor;
-- next statement
comment on schema pgfence_registry is 'pgfence: who holds a resource now, and every grant ever issued';
-- next statement
revoke all on schema pgfence_registry from public;
-- next statement
grant usage on schema pgfence_registry to pgfence_app, pgfence_registry, pgfence_auditor;
