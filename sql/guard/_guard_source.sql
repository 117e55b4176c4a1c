-- Writes the body of a table's guard function. It runs as pgfence_owner and still never runs code
-- of a user's: it reads the template's columns alone, looks at their types in the data itself (the
-- catalog might be read through an old snapshot) before any expression on them is even parsed, and
-- then uses functions of pg_catalog only. It contains no backslash: a client may have switched
-- standard_conforming_strings off when the body is parsed.
create function pgfence._guard_source(p_table regclass, p_template text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_piece record;
    v_column record;
    v_next_starts text;
    v_columns text[] := '{}';           -- n.batch_date
    v_columns_by_bytes text[] := '{}';  -- the same, text by its bytes and not by its collation
    v_other_types text[] := '{}';       -- pg_typeof(v_row.batch_date)::oid <> 1082
    v_differences text[] := '{}';       -- r.batch_date is distinct from that of the row
    v_resource_of_row text[] := '{}';   -- 'invoice-batch/', to_char(v_row.batch_date, ...)
    v_resource_of_group text[] := '{}'; -- the same of g.batch_date
    v_select_row text;
    v_resource_of text;
    v_check_types text;
    v_check_row text;
    v_by_operation text := '';
    v_rest_by_operation text := '';
    v_others text;
    v_rows text;
    v_operation text;
begin
    for v_piece in
        select p.literal, p.column_name, lead(p.literal) over w as next_literal, lead(p.column_name) over w as next_column
        from pgfence._template_pieces(p_template) as p
        window w as (order by p.piece)
    loop
        if v_piece.literal <> '' then
            v_resource_of_row := v_resource_of_row || quote_literal(v_piece.literal);
            v_resource_of_group := v_resource_of_group || quote_literal(v_piece.literal);
        end if;
        continue when v_piece.column_name is null;

        select a.atttypid as type, format_type(a.atttypid, null) as type_name, a.attgenerated = 'v' as is_virtual,
               quote_ident(a.attname) as name, case when t.typcollation <> 0 then ' collate "C"' end as by_bytes
        into v_column
        from pg_attribute as a join pg_type as t on t.oid = a.atttypid
        where a.attrelid = p_table and a.attname = v_piece.column_name and a.attnum > 0 and not a.attisdropped;
        if not found then
            perform pgfence._raise('UNPROTECTABLE', format('%s has no column "%s"', p_table, v_piece.column_name),
                'The template names columns exactly as the catalog spells them, without quotes.', 'R23');
        end if;
        v_next_starts := case when v_piece.next_column is not null then left(v_piece.next_literal, 1) end;
        v_resource_of_row := v_resource_of_row
            || pgfence._render_expression(v_column.type, 'v_row.' || v_column.name, v_next_starts);
        v_resource_of_group := v_resource_of_group
            || pgfence._render_expression(v_column.type, 'g.' || v_column.name, v_next_starts);
        if v_column.is_virtual or array_position(v_resource_of_row, null) is not null then
            perform pgfence._raise('UNPROTECTABLE',
                format('column "%s" of %s (%s%s) cannot name a resource', v_piece.column_name, p_table,
                    v_column.type_name, case when v_column.is_virtual then ', virtual' end),
                'Columns of type text, varchar, char, smallint, integer, bigint, numeric, boolean, uuid, date and timestamp '
                'can. For any other add a column of type text, generated and stored if you like, and name that one.', 'R23');
        end if;
        if strpos('0123456789', v_next_starts) > 0
            and v_column.type in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'numeric'::regtype)
            or v_next_starts = '.' and v_column.type = 'numeric'::regtype
        then
            perform pgfence._raise('UNPROTECTABLE',
                format('in the template %s the number "%s" runs into the "%s" after it', p_template, v_piece.column_name,
                    v_next_starts),
                'Put another literal after the number, as in {customer}/{batch}.', 'R23');
        end if;

        if 'n.' || v_column.name <> all(v_columns) then
            v_columns := v_columns || format('n.%s', v_column.name);
            v_columns_by_bytes := v_columns_by_bytes || format('n.%1$s%2$s as %1$s', v_column.name, v_column.by_bytes);
            v_other_types := v_other_types || format('pg_typeof(v_row.%s)::oid <> %s', v_column.name, v_column.type::oid);
            -- in a query of its own, which is asked once and not for each row
            v_differences := v_differences
                || format('r.%1$s is distinct from (select v_row.%1$s%2$s)', v_column.name, v_column.by_bytes);
        end if;
    end loop;

    if v_columns = '{}' then -- the whole table is one resource
        v_columns := array['1 as one'];
        v_columns_by_bytes := v_columns;
        v_other_types := array['false'];
        v_differences := array['false'];
    end if;

    v_select_row := 'select ' || array_to_string(v_columns, ', ') || ' into v_row from ';
    v_check_types := '
    if ' || array_to_string(v_other_types, ' or ') || ' then
        perform pgfence._refuse_changed_column(tg_relid);
        return null;
    end if;';
    v_resource_of := '(' || array_to_string(v_resource_of_row, ' || ') || ') collate "C"';
    v_check_row := v_check_types || '
    v_resource := ' || v_resource_of || ';
    if (v_resource = v_admitted) is not true then
        if not exists (select from pgfence.admitted_resources as a where a.resource = v_resource) then
            perform pgfence._refuse_write(tg_relid, tg_op, v_resource);
        end if;
    end if;';
    -- What is asked most often comes first, and in few expressions: PostgreSQL sets up each of them anew in
    -- each transaction. Hence one for what is rare together, a row's guard and a shadowed name.
    foreach v_operation in array array['UPDATE', 'INSERT', 'DELETE'] loop
        v_rows := concat_ws(' union all ',
            case when v_operation <> 'DELETE' then
                'select ' || array_to_string(v_columns_by_bytes, ', ') || ' from pgfence_new_rows as n' end,
            case when v_operation <> 'INSERT' then
                'select ' || array_to_string(v_columns_by_bytes, ', ') || ' from pgfence_old_rows as n' end);
        v_others := '(
                select (' || array_to_string(v_resource_of_group, ' || ') || ') collate "C" as resource
                from (select distinct r.* from (' || v_rows || ') as r where ' || array_to_string(v_differences, ' or ') || ') as g
            ) as o
            where (select true from pgfence.admitted_resources as a where a.resource = o.resource) is null';
        v_rest_by_operation := v_rest_by_operation || '
        if tg_op = ' || quote_literal(v_operation) || ' then
            perform pgfence._refuse_write(tg_relid, tg_op, o.resource)
            from ' || v_others || ';
        end if;';
        v_by_operation := v_by_operation || '
    elsif tg_op = ' || quote_literal(v_operation) || ' then
        ' || v_select_row || case v_operation when 'DELETE' then 'pgfence_old_rows' else 'pgfence_new_rows' end || ' as n limit 1;'
        || case v_operation when 'UPDATE' then '
        if not found then
            ' || v_select_row || 'pgfence_old_rows as n limit 1;' else '' end || '
        if not found then
            return null;
        end if;' || case v_operation when 'UPDATE' then '
        end if;' else '' end || v_check_types || '
        -- is it admitted, and do all others equal it?
        if exists (select from pgfence.admitted_resources as a where a.resource = ' || v_resource_of || ')
           and not exists (select from (' || v_rows || ') as r where ' || array_to_string(v_differences, ' or ') || ')
        then
            return null;
        end if;
        v_resource := ' || v_resource_of || ';
        v_is_admitted := exists (select from pgfence.admitted_resources as a where a.resource = v_resource);
        v_has_others := exists (select from (' || v_rows || ') as r where ' || array_to_string(v_differences, ' or ') || ');
        if v_is_admitted and v_has_others then
            select o.resource into v_resource
            from ' || v_others || '
            limit 1;
            v_is_admitted := not found;
        end if;';
    end loop;
    return '
#variable_conflict use_variable
declare
    v_row record;
    v_resource text collate "C";
    v_admitted text collate "C";
    v_is_admitted boolean;
    v_has_others boolean;
begin
    if tg_level = ''ROW'' or to_regclass(''pgfence_new_rows'') is not null or to_regclass(''pgfence_old_rows'') is not null then
        if tg_level <> ''ROW'' then
            perform pgfence._refuse_shadowed(tg_relid);
        end if;
        if tg_op <> ''INSERT'' then
            v_row := old;' || v_check_row || '
            v_admitted := v_resource;
        end if;
        if tg_op <> ''DELETE'' then
            v_row := new;' || v_check_row || '
        end if;
        return null;' || v_by_operation || '
    end if;
    if v_is_admitted is not true then -- TRUNCATE never is
        perform pgfence._refuse_write(tg_relid, tg_op, v_resource);
        -- It returned: that resource is in shadow. Is every other one of the statement?
        if v_has_others then' || replace(v_rest_by_operation, E'\n', E'\n    ') || '
        end if;
    end if;
    return null;
end
';
end
$$;
revoke all on function pgfence._guard_source(regclass, text) from public;
comment on function pgfence._guard_source(regclass, text) is
    'Body of the guard function of a table. Raises PF301 and PF304 where the template or a column cannot be used (R23).';
