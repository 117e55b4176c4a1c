-- The one table of refusals and errors: name, SQLSTATE, meaning. Class PF, because A-H and 0-4
-- belong to the standard and middleware retries some of the others.
create function pgfence.error_codes()
returns table (name text, sqlstate text, meaning text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    values
    ('MALFORMED',        'PF101', 'the grant is not a well-formed lockGrant.v1 token'),
    ('UNKNOWN_KEY',      'PF102', 'no valid grant key of the trust bundle signed this token'),
    ('BAD_SIGNATURE',    'PF103', 'the signature does not belong to these bytes'),
    ('WRONG_AUDIENCE',   'PF104', 'the grant was issued for another database'),
    ('NOT_OWNER',        'PF105', 'the session does not belong to the workload that owns the grant'),
    ('REVOKED_EPOCH',    'PF106', 'the issuer epoch of the grant has been revoked'),
    ('REBIND_REQUIRED',  'PF107', 'this database is a copy of the one that was guarded'),
    ('STALE_POLICY',     'PF108', 'the policy of the resource has a newer generation'),
    ('WRONG_OPERATION',  'PF109', 'the policy of the resource does not allow this operation class'),
    ('PAUSED',           'PF110', 'the resource is paused'),
    ('STALE_OWNER',      'PF111', 'a newer owner has written'),
    ('FENCE_REGRESSION', 'PF112', 'the token sequence of the resource has gone back'),
    ('ROOT_MISMATCH',    'PF113', 'the operation root does not belong to this fence token'),
    ('EQUIVOCATION',     'PF114', 'two different grants carry the same root and fence token'),
    ('PAYLOAD_CONFLICT', 'PF115', 'the segment was accepted with another payload'),
    ('NOT_HELD',         'PF116', 'the lease is not held now'),
    ('STALE_STATUS',     'PF117', 'the status proof does not show that the lease is held now'),
    ('FENCE_STEP',       'PF118', 'the fence token jumps further than the policy allows'),
    ('SEGMENT_GAP',      'PF119', 'the segment is not the next one'),
    ('NOT_ADMITTED',     'PF201', 'the row belongs to no resource admitted in this transaction'),
    ('GUARD_MISSING',    'PF202', 'the guard of a protected table is missing or was changed'),
    ('LEASE_ENDED',      'PF203', 'the lease ended before the transaction committed'),
    ('CLOSED_TABLE',     'PF204', 'only pgfence itself writes its tables'),
    ('FENCE_LOWERED',    'PF205', 'a fence token never goes down'),
    ('INVALID_ARGUMENT', 'PF301', 'an argument is missing or out of range'),
    ('NO_WORKLOAD',      'PF302', 'the login role belongs to no workload'),
    ('REQUEST_CONFLICT', 'PF303', 'the request ID was used with other arguments'),
    ('UNPROTECTABLE',    'PF304', 'the table cannot be protected as it is'),
    ('TRUST_REFUSED',    'PF305', 'the trust bundle was refused'),
    ('ROLLOUT_REFUSED',  'PF306', 'the rollout goes from shadow to enforced only'),
    ('DECISION_REFUSED', 'PF307', 'the answer contradicts what the database knows, or may still come to know'),
    ('REGISTRY_ELSEWHERE', 'PF308', 'the registry of this database is in another one'),
    ('WRONG_COORDINATOR','PF309', 'another coordinator says who may hold')
$$;
revoke all on function pgfence.error_codes() from public;
grant execute on function pgfence.error_codes() to pgfence_app, pgfence_registry, pgfence_auditor;
comment on function pgfence.error_codes() is
    'Every refusal and error of pgfence: name, SQLSTATE, meaning.';
