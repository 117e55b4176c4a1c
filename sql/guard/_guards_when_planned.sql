-- What pgfence._look_at_guards says of a prefix, asked by the planner and by nothing else: IMMUTABLE
-- makes it a constant of the plan. See pgfence.attestation_source for when the plan is made anew.
create function pgfence._guards_when_planned(p_prefix text, p_tables oid[])
returns boolean
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return pgfence._look_at_guards(p_prefix);
end
$$;
revoke all on function pgfence._guards_when_planned(text, oid[]) from public;
comment on function pgfence._guards_when_planned(text, oid[]) is
    'Whether the guards of all tables of the prefix were whole when the plan was made, which names these (R25).';
