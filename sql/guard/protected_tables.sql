-- One row a protected table: the template that names the resource of its rows, and what its guard
-- function must read. Who wants the guard off drops the table, or asks a member of pgfence_owner.
create table pgfence.protected_tables (
    guard_id        bigint generated always as identity constraint protected_tables_pkey primary key,
    protected_table regclass not null constraint protected_tables_protected_table unique,
    template        text collate "C" not null,
    literal_prefix  text collate "C" not null,
    guard_source    text collate "C" not null,
    protected_by    text not null default session_user,
    protected_at    timestamptz not null default pg_catalog.clock_timestamp()
);

comment on table pgfence.protected_tables is
    'Tables whose rows are written only by an owner admitted in the same transaction (R23).';
comment on column pgfence.protected_tables.guard_id is 'The guard function is pgfence._guard_<guard_id>().';
comment on column pgfence.protected_tables.template is 'Names the resource of a row: literals and {column}.';
comment on column pgfence.protected_tables.literal_prefix is
    'What every resource of this table begins with: the template up to its first column.';
comment on column pgfence.protected_tables.guard_source is 'The body that the guard function must have (R25).';
comment on column pgfence.protected_tables.protected_by is 'session_user of the call of protect.';

grant select on pgfence.protected_tables to pgfence_auditor;
