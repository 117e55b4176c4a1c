-- The two schemas. One that a DBA made beforehand is used if it is pgfence_owner's and empty: an
-- object planted there, or a right to plant one, could take the place of one of pgfence's own.
do $$
declare
    v_schema text;
    v_oid oid;
begin
    foreach v_schema in array array['pgfence', 'pgfence_registry'] loop
        select n.oid into v_oid from pg_catalog.pg_namespace as n where n.nspname = v_schema;
        if not found then
            begin
                execute format('create schema %I authorization pgfence_owner', v_schema);
            exception when insufficient_privilege then
                raise exception 'schema % does not exist and % may not create it', v_schema, current_user
                    using errcode = 'insufficient_privilege',
                          hint = format('A DBA may run: create schema %I authorization pgfence_owner;', v_schema);
            end;
            continue;
        end if;
        if not exists (
            select from pg_catalog.pg_namespace as n
            where n.oid = v_oid and n.nspowner = 'pgfence_owner'::regrole
        ) then
            raise exception 'schema % exists, but does not belong to pgfence_owner', v_schema
                using errcode = 'object_not_in_prerequisite_state',
                      hint = format('A DBA may run: alter schema %I owner to pgfence_owner;', v_schema);
        end if;
        if exists (
            select from pg_catalog.pg_namespace as n, pg_catalog.aclexplode(n.nspacl) as a
            where n.oid = v_oid and a.grantee <> n.nspowner
        ) then
            raise exception 'schema % exists, and others than its owner hold rights on it', v_schema
                using errcode = 'object_not_in_prerequisite_state',
                      hint = format('Drop it, or revoke those rights: see \dn+ %s in psql.', v_schema);
        end if;
        if exists (select from pg_catalog.pg_class as c where c.relnamespace = v_oid)
            or exists (select from pg_catalog.pg_proc as p where p.pronamespace = v_oid)
            or exists (select from pg_catalog.pg_type as t where t.typnamespace = v_oid)
            or exists (select from pg_catalog.pg_operator as o where o.oprnamespace = v_oid)
        then
            raise exception 'schema % exists and is not empty', v_schema
                using errcode = 'object_not_in_prerequisite_state',
                      hint = 'pgfence is installed into schemas of its own. Where an earlier pgfence is installed, use pgfence migrate.';
        end if;
    end loop;
end
$$;
