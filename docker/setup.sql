-- Who may do what, for docker-compose.yml. As dba, who is a member of pgfence_owner since
-- `pgfence migrate`. A second run changes nothing.
\set ON_ERROR_STOP on

grant pgfence_app to billing_owner, worker_a, worker_b;
grant pgfence_registry to registry;
select pgfence.add_workload('worker-a', 'worker_a'), pgfence.add_workload('worker-b', 'worker_b');
