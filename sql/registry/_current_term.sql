-- The term in force.
create function pgfence_registry._current_term()
returns pgfence_registry.terms
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select t.* from pgfence_registry.terms as t order by t.term desc limit 1
$$;
revoke all on function pgfence_registry._current_term() from public;
comment on function pgfence_registry._current_term() is 'The coordinator in force (R37).';
