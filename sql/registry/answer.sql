-- What the registry answers to a worker.
create type pgfence_registry.answer as (
    state         text,
    request_id    text,
    resource      text,
    lease         text,
    fence_token   bigint,
    token         text,
    grant_digest  text,
    ttl_ms        bigint,
    lease_ends_at timestamptz,
    remaining_ms  bigint,
    look_again_ms bigint,
    wake_channel  text,
    reason        text,
    in_shadow     boolean
);

comment on type pgfence_registry.answer is
    'state is WAIT, SIGNING, HELD, EXPIRED, RELEASED, SUPERSEDED, WITHDRAWN or UNKNOWN. WAIT and SIGNING: call request() again when NOTIFY comes on wake_channel, at the latest after look_again_ms. in_shadow comes with the token: refusals of the resource are let through (R28).';
