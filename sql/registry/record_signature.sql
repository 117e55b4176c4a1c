-- Records the signed token of a grant, raises the coordinator's mark (R37), and wakes the worker that
-- waits for it. False when somebody else has signed it, its lease is over, or a transaction holds the row:
-- then look again, nobody waits for its owner.
create function pgfence_registry.record_signature(p_lease text, p_token text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_grant pgfence_registry.grants;
begin
    if p_lease is null or p_token is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'record_signature: an argument is NULL',
            'Pass the lease and the signed token.', 'R53');
    end if;
    update pgfence_registry.grants as g set token = p_token
     where g.lease = (select w.lease from pgfence_registry.grants as w
                       where w.lease = p_lease and w.token is null and w.state = 'HELD'
                         and w.lease_ends_at > pg_catalog.clock_timestamp()
                         for no key update skip locked)
    returning g.* into v_grant;
    if not found then
        return false;
    end if;
    insert into pgfence_registry.backend_marks as m (resource, term, mark)
    select v_grant.resource, t.term, (pgfence._parse_grant(v_grant.message)).backend_revision
      from pgfence_registry.terms as t
     where t.term = v_grant.term and t.rising_tokens and t.coordinator <> 'postgres'
    on conflict (resource, term) do update set mark = greatest(m.mark, excluded.mark);
    perform pg_catalog.pg_notify(pgfence_registry._wake_channel(v_grant.owner, v_grant.request_id), '');
    return true;
end
$$;
revoke all on function pgfence_registry.record_signature(text, text) from public;
grant execute on function pgfence_registry.record_signature(text, text) to pgfence_registry;
comment on function pgfence_registry.record_signature(text, text) is
    'Records the token of a decided grant, once (R34, R53). Raises PF301.';
