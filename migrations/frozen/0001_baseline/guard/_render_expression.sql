-- SQL that renders a value (itself given as SQL) of a column of this type, or null if the type is
-- not one of those that render the same under every setting of a client, by code of PostgreSQL's
-- own. p_next is the literal before the next column: no value may contain what ends it there, so
-- two rows with different values never share a resource. Renders NULL where a value has no form.
create function pgfence._render_expression(p_type oid, p_value text, p_next text)
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    case p_type
    when 'text'::regtype, 'varchar'::regtype, 'bpchar'::regtype then
        if p_next is null then
            return format('%s::text', p_value);
        end if;
        return format('case when strpos(%1$s::text collate "C", %2$L) = 0 then %1$s::text end', p_value, left(p_next, 1));
    when 'int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'bool'::regtype, 'uuid'::regtype then
        return format('%s::text', p_value);
    when 'numeric'::regtype then -- 1.0 is 1; NaN and infinity have no scale
        return format('case when scale(%1$s) is not null then trim_scale(%1$s)::text end', p_value);
    when 'date'::regtype then
        return format($f$case when %1$s between make_date(1, 1, 1) and make_date(9999, 12, 31) then to_char(%1$s::timestamp, 'YYYY-MM-DD') end$f$,
            p_value);
    when 'timestamp'::regtype then
        return format($f$case when %1$s >= make_timestamp(1, 1, 1, 0, 0, 0) and %1$s < make_timestamp(10000, 1, 1, 0, 0, 0) then to_char(%1$s, 'YYYY-MM-DD"T"HH24:MI:SS.US') end$f$,
            p_value);
    when 'timestamptz'::regtype then
        return format('%s || ''Z''', pgfence._render_expression(
            'timestamp'::regtype, format('timezone(make_interval(), %s)', p_value), p_next));
    else
        return null;
    end case;
end
$$;
-- next statement
revoke all on function pgfence._render_expression(oid, text, text) from public;
-- next statement
comment on function pgfence._render_expression(oid, text, text) is
    'SQL that renders a column as part of a resource; null for a type that protect refuses (R23).';
