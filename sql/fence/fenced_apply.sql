-- The entry point of every protected write. Answers a verdict; only ACCEPTED admits the resource,
-- and only until this transaction ends. The guard makes ignoring a refusal harmless.
create function pgfence.fenced_apply(
    p_grant text, p_segment_seq bigint, p_payload text, p_status text default null
)
returns pgfence.verdict
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_grant is null or p_segment_seq is null or p_payload is null or p_segment_seq < 1 then
        perform pgfence._raise('INVALID_ARGUMENT',
            case when p_grant is null then 'fenced_apply: p_grant is NULL'
                 when p_segment_seq is null then 'fenced_apply: p_segment_seq is NULL'
                 when p_payload is null then 'fenced_apply: p_payload is NULL'
                 else pg_catalog.format('fenced_apply: segment %s is below 1', p_segment_seq) end,
            'Pass the grant token, a segment number from 1 on, and a payload ('''' is one).', 'R5');
    end if;
    return pgfence._decide(p_grant, p_segment_seq, pg_catalog.sha256(pg_catalog.convert_to(p_payload, 'UTF8')), p_status);
end
$$;
revoke all on function pgfence.fenced_apply(text, bigint, text, text) from public;
grant execute on function pgfence.fenced_apply(text, bigint, text, text) to pgfence_app;
comment on function pgfence.fenced_apply(text, bigint, text, text) is
    'Accepts one segment of a grant''s operation and admits its resource in this transaction, or answers why not (R5 to R16). Raises PF301 for a NULL or a segment below 1, PF202 when a guard is missing, and at COMMIT PF203 when the lease has ended; 40001, 40P01, 55P03, 57014, 25P03 and 25P04 pass through.';
