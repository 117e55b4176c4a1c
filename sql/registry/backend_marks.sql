-- The highest token of the coordinator for which a grant of a resource was signed. Fences do not hang
-- on it; that a token does not exceed it shows that the lock service has forgotten something (R37).
create table pgfence_registry.backend_marks (
    resource text collate "C" not null,
    term     bigint not null,
    mark     bigint not null,
    constraint backend_marks_pkey primary key (resource, term)
) with (fillfactor = 70);

comment on table pgfence_registry.backend_marks is
    'High-water marks of the coordinators'' own tokens (R37); resuming a resource begins a new one.';

grant select on pgfence_registry.backend_marks to pgfence_auditor;
