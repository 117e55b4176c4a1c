-- The resource that a token names, also one whose signature is not good. It decides only whether the
-- answer is a refusal or a would-be refusal, and neither of the two admits anything.
create function pgfence._claimed_resource(p_token text)
returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_body bytea;
begin
    if pg_catalog.octet_length(p_token) > 8192 then
        return null;
    end if;
    v_body := pgfence._base64url_decode(pg_catalog.split_part(p_token, '.', 3));
    if (pg_catalog.length(v_body) > 64) is not true then
        return null;
    end if;
    return (pgfence._parse_grant(pg_catalog.encode(
        pg_catalog.substr(v_body, 1, pg_catalog.length(v_body) - 64), 'escape'))).resource;
end
$$;
-- next statement
revoke all on function pgfence._claimed_resource(text) from public;
-- next statement
comment on function pgfence._claimed_resource(text) is
    'Resource in a grant token, unverified; null where it cannot be read (R28).';
