-- The four groups, made where they are missing, and the installer's right to act as pgfence_owner.
-- Roles belong to the whole cluster: a second database, or a DBA, may have made them before.
do $$
declare
    v_role text;
    v_may_set boolean;
begin
    foreach v_role in array array['pgfence_owner', 'pgfence_app', 'pgfence_registry', 'pgfence_auditor'] loop
        if to_regrole(v_role) is null then
            begin
                execute format('create role %I nologin', v_role);
            exception
                when insufficient_privilege then
                    raise exception 'role % does not exist and % may not create it', v_role, current_user
                        using errcode = 'insufficient_privilege',
                              hint = format('A DBA may run: create role %I nologin;', v_role);
                when duplicate_object then
                    null; -- another database's installation has just made it
            end;
        elsif exists (
            select from pg_catalog.pg_roles as r
            where r.rolname = v_role
              and (r.rolcanlogin or r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolreplication or r.rolbypassrls)
        ) then
            raise exception 'role % exists, but is not a plain NOLOGIN group', v_role
                using errcode = 'object_not_in_prerequisite_state',
                      hint = format('A DBA may run: alter role %I nologin nosuperuser nocreaterole nocreatedb noreplication nobypassrls;', v_role);
        end if;
    end loop;

    -- From 16 on, who creates a role holds ADMIN on it, but neither inherits from it nor may become it.
    if current_setting('server_version_num')::integer >= 160000 then
        execute 'select pg_has_role(current_user, ''pgfence_owner'', ''SET'') and pg_has_role(current_user, ''pgfence_owner'', ''USAGE'')'
            into v_may_set;
    else
        v_may_set := pg_has_role(current_user, 'pgfence_owner', 'USAGE');
    end if;
    if v_may_set then
        return;
    end if;
    begin
        if current_setting('server_version_num')::integer >= 160000 then
            execute format('grant pgfence_owner to %I with inherit true, set true', current_user);
        else
            execute format('grant pgfence_owner to %I', current_user);
        end if;
    exception when insufficient_privilege then
        raise exception 'role pgfence_owner exists, and % is not a member of it', current_user
            using errcode = 'insufficient_privilege',
                  hint = format('A DBA may run: grant pgfence_owner to %I%s;', current_user,
                      case when current_setting('server_version_num')::integer >= 160000 then ' with inherit true, set true' else '' end);
    end;
end
$$;
