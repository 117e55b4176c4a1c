-- Answer about a lease that is of no more use: its epoch was revoked, or the database is another since
-- it was granted (R7, R39).
create function pgfence_registry._revoked(p_answer pgfence_registry.answer)
returns pgfence_registry.answer
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_answer pgfence_registry.answer := p_answer;
begin
    v_answer.state := 'EXPIRED';
    v_answer.token := null;
    v_answer.remaining_ms := 0;
    v_answer.look_again_ms := null;
    v_answer.wake_channel := null;
    v_answer.reason := 'its issuer epoch was revoked, or this database was promoted, restored or copied: acquire the resource again';
    return v_answer;
end
$$;
revoke all on function pgfence_registry._revoked(pgfence_registry.answer) from public;
comment on function pgfence_registry._revoked(pgfence_registry.answer) is
    'The answer EXPIRED for a lease of a revoked epoch (R7, R39).';
