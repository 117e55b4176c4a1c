-- Whether the session user may do what the role may: inherits from it, or may become it. SET ROLE
-- and definer functions do not change the answer.
create function pgfence._session_may_act_as(p_role oid)
returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select pg_has_role(session_user, p_role, 'USAGE')
        or pg_has_role(session_user, p_role,
            case when current_setting('server_version_num')::integer >= 160000 then 'SET' else 'MEMBER' end)
$$;
revoke all on function pgfence._session_may_act_as(oid) from public;
comment on function pgfence._session_may_act_as(oid) is 'Whether session_user inherits from the role or may become it (R23).';
