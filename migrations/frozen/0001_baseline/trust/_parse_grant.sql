-- Reads the message of a grant (R3). Values hold neither quotes nor escapes, so a grant cut at its
-- double quotes has 63 pieces in fixed places. That the values, encoded again, give the same text
-- proves that nothing else was in it: no other key, order, white space or way to write a number.
create function pgfence._parse_grant(p_message text)
returns pgfence._grant
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_piece text[] := string_to_array(p_message, '"');
    v_grant pgfence._grant;
begin
    if p_message is null or cardinality(v_piece) <> 63 then
        return null;
    end if;
    v_grant.audience          := v_piece[4];
    v_grant.backend           := v_piece[8];
    v_grant.backend_revision  := pgfence._parse_integer(btrim(v_piece[11], ':,'));
    v_grant.continues_root    := v_piece[14];
    v_grant.fence_token       := pgfence._parse_integer(btrim(v_piece[17], ':,'));
    v_grant.issued_at         := pgfence._parse_integer(btrim(v_piece[19], ':,'));
    v_grant.issuer            := v_piece[22];
    v_grant.issuer_epoch      := pgfence._parse_integer(btrim(v_piece[25], ':,'));
    v_grant.lease             := v_piece[28];
    v_grant.operation_class   := v_piece[32];
    v_grant.operation_root    := v_piece[36];
    v_grant.owner             := v_piece[40];
    v_grant.policy_generation := pgfence._parse_integer(btrim(v_piece[43], ':,'));
    v_grant.request_id        := v_piece[46];
    v_grant.resource          := v_piece[50];
    v_grant.schema            := v_piece[54];
    v_grant.state             := v_piece[58];
    v_grant.status_until      := pgfence._parse_integer(btrim(v_piece[61], ':,'));
    v_grant.ttl_ms            := pgfence._parse_integer(btrim(v_piece[63], ':}'));

    if p_message is distinct from pgfence._encode_grant(v_grant)
       or v_grant.schema <> 'lockGrant.v1'
       or v_grant.state <> 'HELD'
       or v_grant.fence_token < 1
       or not pgfence._is_identifier(v_grant.audience)
       or not pgfence._is_identifier(v_grant.backend)
       or not pgfence._is_identifier(v_grant.issuer)
       or not pgfence._is_identifier(v_grant.lease)
       or not pgfence._is_identifier(v_grant.operation_class)
       or not pgfence._is_identifier(v_grant.owner)
       or not pgfence._is_identifier(v_grant.request_id)
       or not pgfence._is_identifier(v_grant.resource)
       or not pgfence._is_operation_root(v_grant.operation_root)
       or not (v_grant.continues_root = '' or pgfence._is_operation_root(v_grant.continues_root)) then
        return null;
    end if;
    return v_grant;
end
$$;
-- next statement
revoke all on function pgfence._parse_grant(text) from public;
-- next statement
comment on function pgfence._parse_grant(text) is
    'The claims of a canonical, valid lockGrant.v1 message (R3); NULL for any other text, never an error.';
