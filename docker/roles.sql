-- Login roles for docker-compose.yml, made by the superuser when the database is new.
\set ON_ERROR_STOP on
\getenv password PGFENCE_PASSWORD

create role dba login createrole password :'password';           -- installs pgfence
create role billing_owner login password :'password';            -- owns the tables
create role registry login password :'password';                 -- signs grants
create role worker_a login password :'password';
create role worker_b login password :'password';

select format('grant create on database %I to dba', current_database()) \gexec
grant create on schema public to billing_owner;
grant pg_signal_backend to registry;                             -- ends overdue sessions
