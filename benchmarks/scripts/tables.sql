-- The tables of the benchmark, as billing_owner. What is written stands twice, free and guarded.
create table free_invoices (id bigint primary key, batch integer not null, settled bigint not null default 0);
create table invoices (like free_invoices including all);
insert into free_invoices (id, batch) select n, n from generate_series(0, 9) as n;
insert into invoices select * from free_invoices;

-- One segment of many rows.
create table free_bulk (like free_invoices including all);
create table bulk (like free_invoices including all);

-- The same idea by hand, as somebody would write it who trusts every writer.
create table hand_fences (
    resource text collate "C" primary key, fence_token bigint not null, last_segment bigint not null
) with (fillfactor = 70);
insert into hand_fences select 'batch/' || n, 1, 0 from generate_series(0, 9) as n;
create table hand_receipts (
    resource text collate "C", fence_token bigint, segment_seq bigint,
    payload_digest bytea not null, accepted_at timestamptz not null default clock_timestamp(),
    primary key (resource, fence_token, segment_seq)
);

-- The grants that the scripts of pgbench use.
create table tokens (n integer primary key, resource text not null, token text not null);

-- A user's function: the segment and its rows in one call.
create function settle(p_token text, p_segment bigint, p_payload text, p_id bigint) returns text
language plpgsql as $$
declare
    v_verdict pgfence.verdict;
begin
    v_verdict := pgfence.fenced_apply(p_token, p_segment, p_payload);
    if v_verdict.verdict = 'ACCEPTED' then
        update invoices set settled = settled + 1 where id = p_id;
    end if;
    return v_verdict.verdict;
end
$$;

grant select, insert, update on all tables in schema public to worker_a;
select pgfence.protect('invoices', 'batch/{batch}');
