-- What shadow() and enforce() have in common: what a prefix is, and one of them at a time.
create function pgfence._check_rollout(p_function text, p_prefix text, p_reason text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_prefix is null or p_reason is null or (p_prefix <> '' and not pgfence._is_identifier(p_prefix)) then
        perform pgfence._raise('INVALID_ARGUMENT',
            format('%s: prefix %L is not the beginning of a resource ID, or the reason is NULL', p_function, p_prefix),
            'Use printable ASCII without space, double quote or backslash; the empty prefix is everything. The reason may be empty.',
            'R29');
    end if;
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        perform pgfence._raise('INVALID_ARGUMENT', format('%s: the rollout is not decided on an old snapshot', p_function),
            'Call it in READ COMMITTED, in a transaction of its own.', 'R29');
    end if;
    lock table pgfence.rollout in share row exclusive mode;
end
$$;
-- next statement
revoke all on function pgfence._check_rollout(text, text, text) from public;
-- next statement
comment on function pgfence._check_rollout(text, text, text) is
    'Checks the arguments of shadow() and enforce(), and keeps others of them out. Raises PF301.';
