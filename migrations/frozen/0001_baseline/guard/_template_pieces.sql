-- Takes a template apart: each piece is a literal and the column after it (null after the last
-- literal). Two columns need a literal between them, so that one text is one list of values.
create function pgfence._template_pieces(p_template text)
returns table (piece integer, literal text, column_name text)
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rest text collate "C" := p_template;
    v_open integer;
    v_close integer;
begin
    if p_template is null or p_template = '' then
        perform pgfence._raise('INVALID_ARGUMENT', 'the template is missing',
            'A template names the resource of a row from its columns: invoice-batch/{batch_date}', 'R23');
    end if;
    piece := 0;
    loop
        piece := piece + 1;
        v_open := strpos(v_rest, '{');
        literal := case when v_open > 0 then left(v_rest, v_open - 1) else v_rest end;
        if strpos(literal, '}') > 0 or (literal <> '' and not pgfence._is_identifier(literal)) then
            perform pgfence._raise('UNPROTECTABLE',
                format('the template %s has the literal "%s", which cannot be part of a resource', p_template, literal),
                'Literals are printable ASCII without space, double quote, backslash and braces.', 'R23');
        end if;
        if v_open = 0 then
            column_name := null;
            if literal <> '' then
                return next;
            end if;
            return;
        end if;
        if literal = '' and piece > 1 then
            perform pgfence._raise('UNPROTECTABLE',
                format('the template %s has two columns with nothing between them', p_template),
                'Put a literal between the columns, as in {customer}/{batch}.', 'R23');
        end if;
        v_rest := substr(v_rest, v_open + 1);
        v_close := strpos(v_rest, '}');
        column_name := left(v_rest, greatest(v_close - 1, 0));
        if column_name = '' or strpos(column_name, '{') > 0 then
            perform pgfence._raise('UNPROTECTABLE',
                format('the template %s has a brace that encloses no column', p_template),
                'A column stands in braces, as in invoice-batch/{batch_date}; a resource with braces cannot be named.',
                'R23');
        end if;
        return next;
        v_rest := substr(v_rest, v_close + 1);
        if v_rest = '' then
            return;
        end if;
    end loop;
end
$$;
-- next statement
revoke all on function pgfence._template_pieces(text) from public;
-- next statement
comment on function pgfence._template_pieces(text) is
    'Literals and columns of a template, in order. Raises PF301 where it is missing, PF304 where it is malformed.';
