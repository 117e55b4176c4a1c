-- Asks again what the missing GRANT says already: is the caller a member of pgfence_owner? A dump that is
-- restored without its privileges gives PUBLIC the right to execute every function (R26, R27).
create function pgfence._owner_only()
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not pgfence._session_may_act_as('pgfence_owner'::regrole) then
        raise exception 'permission denied for role %: it is no member of pgfence_owner', pg_catalog.quote_ident(session_user)
            using errcode = 'insufficient_privilege', constraint = 'R26';
    end if;
end
$$;
-- next statement
revoke all on function pgfence._owner_only() from public;
-- next statement
comment on function pgfence._owner_only() is 'Raises 42501 unless session_user may act as pgfence_owner (R26).';
