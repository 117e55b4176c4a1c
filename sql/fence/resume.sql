-- Lets a paused resource go on: the lease of before ends, and the next grant lies above every fence
-- that was ever issued or accepted here, and above p_above. Nothing goes down (R17, R37). A coordinator
-- that was put back gives low tokens again: from here on they are compared with one another.
create function pgfence.resume(p_resource text, p_reason text default '', p_above bigint default 0)
returns table (paused_because text, above bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_fence pgfence.fences;
    v_marks jsonb;
    v_most bigint;
begin
    perform pgfence._owner_only();
    if p_resource is null or p_reason is null or p_above is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'resume: an argument is NULL',
            'Pass the resource, and a reason, which may be empty.', 'R37');
    end if;
    select f.* into v_fence from pgfence.fences as f where f.resource = p_resource for no key update;
    if v_fence.paused_because is null then
        perform pgfence._raise('INVALID_ARGUMENT', pg_catalog.format('resource %L is not paused', p_resource),
            'Nothing to do. pgfence.fences.paused_because shows which ones are.', 'R37');
    end if;
    -- The next fence must be within the policy's step, or nobody could write with it (R14).
    select least(greatest(v_fence.highest_fence, c.fence_base) + (pgfence._policy_of(p_resource)).largest_step,
                 9007199254740991) - 1
      into v_most from pgfence.configuration as c;
    if p_above not between 0 and v_most then
        perform pgfence._raise('INVALID_ARGUMENT',
            pg_catalog.format('resume: fences of %s cannot begin above %s', p_resource, p_above),
            pg_catalog.format('0 to %s: the policy''s largest step says how far a fence may jump.', v_most), 'R37');
    end if;
    update pgfence_registry.grants as g set state = 'SUPERSEDED', ended_at = pg_catalog.clock_timestamp()
     where g.lease = v_fence.current_lease and g.state = 'HELD';
    update pgfence.fences as f
       set paused_because = null, current_lease = null,
           issued_fence = greatest(f.issued_fence, f.highest_fence, p_above,
                                   (select c.fence_base from pgfence.configuration as c))
     where f.resource = p_resource
    returning v_fence.paused_because, f.issued_fence into paused_because, above;
    with forgotten as (delete from pgfence_registry.backend_marks as m where m.resource = p_resource returning m.*)
    select pg_catalog.jsonb_object_agg(m.term, m.mark) into v_marks from forgotten as m;
    insert into pgfence.journal (action, resource, reason, detail)
    values ('RESUMED', p_resource, p_reason,
            pg_catalog.jsonb_build_object('paused_because', paused_because, 'above', above,
                                          'ended_lease', v_fence.current_lease, 'backend_marks', v_marks));
    perform pgfence_registry._wake_next(p_resource);
    return next;
end
$$;
revoke all on function pgfence.resume(text, text, bigint) from public;
comment on function pgfence.resume(text, text, bigint) is
    'Lets a paused resource go on, above every fence of before (R17, R37). Owner only. Raises PF301.';
