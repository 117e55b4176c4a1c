-- For those who want an exception: raises what fenced_apply() refused. The exception rolls the row
-- of evidence back; the server log line stays.
create function pgfence.require(p_verdict pgfence.verdict)
returns pgfence.verdict
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_verdict.verdict in ('ACCEPTED', 'REPLAYED', 'ADVANCED') then
        return p_verdict;
    elsif p_verdict.verdict = 'WOULD_REFUSE' then
        raise warning 'pgfence would refuse this: %', pg_catalog.concat_ws(': ', p_verdict.would_refuse, p_verdict.explanation);
        return p_verdict;
    end if;
    if p_verdict.verdict is null
       or not exists (select from pgfence.error_codes() as c where c.name = p_verdict.verdict) then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('require: %L is not a verdict', p_verdict.verdict),
            'Pass what fenced_apply() or advance() answered.', 'R5');
    end if;
    perform pgfence._raise(p_verdict.verdict,
        pg_catalog.concat_ws(': ', p_verdict.verdict, p_verdict.explanation),
        'Nothing may be written in this transaction: roll it back, or commit it to keep the evidence.', 'R5',
        pg_catalog.to_jsonb(p_verdict));
    return null;
end
$$;
revoke all on function pgfence.require(pgfence.verdict) from public;
grant execute on function pgfence.require(pgfence.verdict) to pgfence_app;
comment on function pgfence.require(pgfence.verdict) is
    'Returns an accepting verdict, and WOULD_REFUSE with a warning (R28); raises PF101 to PF119 for a refusal, PF301 for anything else.';
