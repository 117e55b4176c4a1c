-- Takes the oldest receipts of a resource out of its chain, and leaves one row for them, so that the chain
-- still verifies (R22): those of superseded fences that are older than p_retention, at most p_limit. The
-- present fence keeps all of its receipts. What does not verify is not pruned: it is evidence. Takes no
-- lock that a segment waits for; one session prunes at a time.
create function pgfence.prune_receipts(p_resource text, p_retention interval, p_limit bigint default 10000)
returns table (
    resource text, receipts bigint, from_fence bigint, from_segment bigint, to_fence bigint, to_segment bigint,
    problem text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_older_than timestamptz;
    v_walk record;
    v_stretch pgfence.pruned_stretches;
    v_gone bigint;
begin
    perform pgfence._owner_only();
    if p_resource is null or (p_limit >= 1) is not true then
        perform pgfence._raise('INVALID_ARGUMENT', 'prune_receipts: the resource is NULL, or the limit is not 1 or more',
            'pgfence.prunable_receipts() names the resources.', 'R22');
    end if;
    v_older_than := pgfence._retention_ends(p_retention);
    lock table pgfence.pruned_stretches in share row exclusive mode;
    v_walk := pgfence._walk_receipts(p_resource, v_older_than, p_limit);
    resource := p_resource;
    receipts := 0;
    if v_walk.problem is not null then
        problem := pg_catalog.format('not pruned: fence %s, segment %s: %s', v_walk.bad_fence, v_walk.bad_segment, v_walk.problem);
    elsif v_walk.receipts > 0 then
        v_stretch.resource := p_resource;
        v_stretch.from_fence := v_walk.from_fence;
        v_stretch.from_segment := v_walk.from_segment;
        v_stretch.to_fence := v_walk.to_fence;
        v_stretch.to_segment := v_walk.to_segment;
        v_stretch.receipts := v_walk.receipts;
        v_stretch.previous_digest := v_walk.previous_digest;
        v_stretch.last_digest := v_walk.last_digest;
        v_stretch.pruned_at := pg_catalog.clock_timestamp();
        v_stretch.pruned_by := session_user;
        v_stretch.digest := pgfence._stretch_digest(v_stretch);
        insert into pgfence.pruned_stretches select (v_stretch).*;
        -- The operation keeps the number of its segments: position() counts them, and nobody takes a
        -- segment that was pruned for one that was never accepted (R45).
        with gone as (
            delete from pgfence.receipts as r
             where r.resource = p_resource
               and (r.fence_token, r.segment_seq) <= (v_stretch.to_fence, v_stretch.to_segment)
            returning r.fence_token, r.segment_seq
        ), noted as (
            update pgfence.operations as o set pruned_segments = g.last_segment
              from (select d.fence_token, max(d.segment_seq) as last_segment, count(*) as receipts
                      from gone as d group by d.fence_token) as g
             where o.resource = p_resource and o.fence_token = g.fence_token
            returning g.receipts
        )
        select sum(n.receipts) into v_gone from noted as n;
        if v_gone is distinct from v_stretch.receipts then
            raise exception using errcode = 'data_exception',
                message = pg_catalog.format('receipts of %s do not belong to its operations: nothing was pruned', p_resource),
                constraint = 'R22';
        end if;
        receipts := v_stretch.receipts;
        from_fence := v_stretch.from_fence;
        from_segment := v_stretch.from_segment;
        to_fence := v_stretch.to_fence;
        to_segment := v_stretch.to_segment;
    end if;
    return next;
end
$$;
-- next statement
revoke all on function pgfence.prune_receipts(text, interval, bigint) from public;
-- next statement
comment on function pgfence.prune_receipts(text, interval, bigint) is
    'One row: the stretch of old receipts of superseded fences that was pruned, or why none was (R22). Owner only. Raises PF301.';
