-- What is known of a grant token after R5. `refused` is null when it is genuine.
create type pgfence._authentication as (
    refused               text,
    reason                text,
    explanation           text,
    grant_claims          pgfence._grant,
    grant_digest          bytea,
    token_digest          bytea,
    key_expires_at        timestamptz,
    bundle_version        bigint,
    remembered            boolean,
    audience              text,
    configuration_version bigint
);

comment on type pgfence._authentication is
    'What is known of a grant token: what is wrong with it, or its claims, and by which bundle they were verified.';
