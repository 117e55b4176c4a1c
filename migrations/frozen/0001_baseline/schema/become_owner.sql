-- Everything from here on is made by, and belongs to, pgfence_owner.
set local role pgfence_owner;
-- next statement
-- Outside a transaction SET LOCAL only warns, and everything would belong to the installer.
do $$
begin
    if current_user <> 'pgfence_owner' then
        raise exception 'pgfence is installed in one transaction'
            using errcode = 'no_active_sql_transaction', hint = 'psql --single-transaction, or BEGIN before the first statement.';
    end if;
end
$$;
