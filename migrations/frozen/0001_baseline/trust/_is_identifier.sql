-- A canonical ID: 1 to 255 printable ASCII characters without space, double quote or backslash.
-- The lengths are checked apart from the pattern: a bound {1,255} makes the pattern slow.
-- No backslash in it: what one means in a literal is for the client's settings to say.
create function pgfence._is_identifier(p_text text)
returns boolean
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return p_text is not null
       and octet_length(p_text) between 1 and 255
       and p_text collate "C" ~ '^[]!#-[^-~]+$';
end
$$;
-- next statement
revoke all on function pgfence._is_identifier(text) from public;
-- next statement
comment on function pgfence._is_identifier(text) is
    'Whether the text is a canonical ID: 1-255 printable ASCII characters without space, double quote or backslash. False for NULL.';
