-- Who asked for what: one row for each request ID of a workload (R34). A waiter touches its own
-- row only, and keeps its place in the queue as long as it does (R36).
create table pgfence_registry.requests (
    workload        text collate "C" not null,
    request_id      text collate "C" not null,
    resource        text collate "C" not null,
    operation_class text collate "C" not null,
    operation_root  text not null,
    continues_root  text not null,
    ttl_ms          bigint not null,
    state           text not null default 'WAITING'
        constraint requests_state check (state in ('WAITING', 'GRANTED', 'WITHDRAWN')),
    lease           text collate "C",
    term            bigint not null default 1,
    seen_at         timestamptz,
    backend_revision bigint not null default 0,
    asked_at        timestamptz not null,
    alive_until     timestamptz not null,
    constraint requests_pkey primary key (workload, request_id),
    -- a root belongs to one grant: nobody else may use it up
    constraint requests_root_is_asked_for_once unique (resource, operation_root)
) with (fillfactor = 70);
-- next statement
comment on table pgfence_registry.requests is
    'Requests for grants and the queue of waiters, in the order of asked_at (R34, R36).';
-- next statement
comment on column pgfence_registry.requests.term is 'The coordinator by way of which it was asked for.';
-- next statement
comment on column pgfence_registry.requests.seen_at is
    'When a registry process saw its key hold the resource at the coordinator; null before, and with postgres, whose queue this table is.';
-- next statement
comment on column pgfence_registry.requests.backend_revision is 'The token of that key; 0 where it has none.';
-- next statement
comment on column pgfence_registry.requests.alive_until is
    'A waiter that has not asked again by then is passed over.';
-- next statement
create index requests_queue on pgfence_registry.requests (resource, asked_at) where state = 'WAITING';
-- next statement
grant select on pgfence_registry.requests to pgfence_auditor;
