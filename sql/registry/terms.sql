-- Who is asked who may hold a resource: this database itself, or a lock service that people run anyway.
-- One row a term; the last one is in force. Fences go on rising through all of them (R37).
create table pgfence_registry.terms (
    term          bigint not null constraint terms_pkey primary key,
    coordinator   text collate "C" not null,
    rising_tokens boolean not null,
    began_at      timestamptz not null default pg_catalog.clock_timestamp()
);

comment on table pgfence_registry.terms is
    'Coordinators, one after the other; the last term is in force (R37). postgres is this registry itself.';
comment on column pgfence_registry.terms.rising_tokens is
    'True: its tokens must rise, and the registry keeps a mark (R37). False: it chooses a candidate, no more (R40).';

insert into pgfence_registry.terms (term, coordinator, rising_tokens) values (1, 'postgres', true);

grant select on pgfence_registry.terms to pgfence_auditor;
