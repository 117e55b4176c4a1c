-- Live requests whose keys at the coordinator no registry process has seen: `claim` is what the key's
-- value must be, `mark` what its token must exceed. The owners take turns. The mark is read before the
-- lock service is, so that a token below it can only mean that tokens have gone back.
create function pgfence_registry.requests_to_inspect()
returns table (
    workload text, request_id text, audience text, resource text, claim text, coordinator text, term bigint, mark bigint
)
language sql volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
    select u.workload, u.request_id, pgfence_registry._audience_of(u.resource), u.resource,
           u.request_id || ' ' || u.operation_root, u.coordinator, u.term,
           coalesce((select m.mark from pgfence_registry.backend_marks as m
                      where m.resource = u.resource and m.term = u.term), 0)
      from (select r.*, t.coordinator,
                   pg_catalog.row_number() over (partition by r.workload order by r.asked_at) as turn
              from pgfence_registry._current_term() as t
              join pgfence_registry.requests as r on r.term = t.term
             where t.coordinator <> 'postgres' and r.state = 'WAITING' and r.seen_at is null
               and r.alive_until > pg_catalog.clock_timestamp()) as u
     order by u.turn, u.asked_at
     limit 100
$$;
-- next statement
revoke all on function pgfence_registry.requests_to_inspect() from public;
-- next statement
grant execute on function pgfence_registry.requests_to_inspect() to pgfence_registry;
-- next statement
comment on function pgfence_registry.requests_to_inspect() is
    'Requests whose keys a registry process is to look for at the coordinator, at most 100 (R37).';
-- next statement
create index requests_unseen on pgfence_registry.requests (asked_at) where state = 'WAITING' and seen_at is null;
