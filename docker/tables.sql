-- The invoices of the example, guarded, for docker-compose.yml. As billing_owner. A second run
-- changes nothing.
\set ON_ERROR_STOP on

select to_regclass('public.invoices') is null as new \gset
\if :new
    begin;
    \ir ../examples/invoices.sql
    \copy invoices (invoice_id, batch_date, customer, amount_cents) from 'examples/invoices.csv' csv header
    grant select on all tables in schema public to worker_a, worker_b;
    grant update on invoices to worker_a, worker_b;
    select pgfence.protect('invoices', 'invoice-batch/{batch_date}');
    commit;
\endif
