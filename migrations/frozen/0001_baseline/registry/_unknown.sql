-- Answer about a lease that does not exist or belongs to another workload.
create function pgfence_registry._unknown(p_lease text)
returns pgfence_registry.answer
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_answer pgfence_registry.answer;
begin
    v_answer.state := 'UNKNOWN';
    v_answer.lease := p_lease;
    v_answer.reason := 'the caller''s workload has no such lease';
    return v_answer;
end
$$;
-- next statement
revoke all on function pgfence_registry._unknown(text) from public;
-- next statement
comment on function pgfence_registry._unknown(text) is 'The answer UNKNOWN.';
