-- Who may look names up in the schemas. What each role may do with them stands beside each object.
-- Outside a transaction SET LOCAL only warns, and everything would belong to the installer.
do $$
begin
    if current_user <> 'pgfence_owner' then
        raise exception 'pgfence is installed in one transaction'
            using errcode = 'no_active_sql_transaction',
                  hint = 'psql --single-transaction, or BEGIN before the first statement.';
    end if;
end
$$;
-- next statement
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
