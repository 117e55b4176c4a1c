-- Reads the message of a status proof, in the way of _parse_grant.
create function pgfence._parse_status(p_message text)
returns pgfence._status
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_piece  text[] := string_to_array(p_message, '"');
    v_status pgfence._status;
begin
    if p_message is null or cardinality(v_piece) <> 25 then
        return null;
    end if;
    v_status.audience     := v_piece[4];
    v_status.grant_digest := v_piece[8];
    v_status.issued_at    := pgfence._parse_integer(btrim(v_piece[11], ':,'));
    v_status.issuer_epoch := pgfence._parse_integer(btrim(v_piece[13], ':,'));
    v_status.revision     := pgfence._parse_integer(btrim(v_piece[15], ':,'));
    v_status.schema       := v_piece[18];
    v_status.state        := v_piece[22];
    v_status.valid_until  := pgfence._parse_integer(btrim(v_piece[25], ':}'));

    if p_message is distinct from pgfence._encode_status(v_status)
       or v_status.schema <> 'lockStatus.v1'
       or v_status.state <> 'HELD'
       or not pgfence._is_identifier(v_status.audience)
       or not pgfence._is_digest(v_status.grant_digest) then
        return null;
    end if;
    return v_status;
end
$$;
-- next statement
revoke all on function pgfence._parse_status(text) from public;
-- next statement
comment on function pgfence._parse_status(text) is
    'The claims of a canonical, valid lockStatus.v1 message (R3); NULL for any other text, never an error.';
