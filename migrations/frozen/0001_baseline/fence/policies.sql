-- What a resource allows, by longest prefix. A new generation refuses the grants of the old one (R8).
create table pgfence.policies (
    prefix            text collate "C" not null constraint policies_pkey primary key,
    generation        bigint not null constraint policies_generation check (generation >= 1),
    operation_classes text[],
    largest_step      bigint not null default 1099511627776
        constraint policies_largest_step check (largest_step between 1 and 9007199254740991),
    largest_ttl_ms    bigint not null default 86400000
        constraint policies_largest_ttl check (largest_ttl_ms between 100 and 9007199254740991)
);
-- next statement
comment on table pgfence.policies is
    'Policy of every resource that starts with the prefix; the longest prefix decides (R8, R14).';
-- next statement
comment on column pgfence.policies.operation_classes is 'Allowed operation classes; null allows any.';
-- next statement
comment on column pgfence.policies.largest_step is 'Largest jump of the fence token (R14); 2^40 by default.';
-- next statement
comment on column pgfence.policies.largest_ttl_ms is 'Longest lease that may be asked for, in milliseconds.';
-- next statement
grant select on pgfence.policies to pgfence_auditor;
-- next statement
insert into pgfence.policies (prefix, generation) values ('', 1);
