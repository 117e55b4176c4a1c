-- Lets a paused resource go on: the lease of before ends, and the next grant lies above every fence
-- that was ever issued or accepted here. Nothing goes down (R17, R37).
create function pgfence.resume(p_resource text, p_reason text default '')
returns table (paused_because text, above bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_fence pgfence.fences;
begin
    perform pgfence._owner_only();
    if p_resource is null or p_reason is null then
        perform pgfence._raise('INVALID_ARGUMENT', 'resume: an argument is NULL',
            'Pass the resource, and a reason, which may be empty.', 'R37');
    end if;
    select f.* into v_fence from pgfence.fences as f where f.resource = p_resource for no key update;
    if v_fence.paused_because is null then
        perform pgfence._raise('INVALID_ARGUMENT', pg_catalog.format('resource %L is not paused', p_resource),
            'Nothing to do. pgfence.fences.paused_because shows which ones are.', 'R37');
    end if;
    update pgfence_registry.grants as g set state = 'SUPERSEDED', ended_at = pg_catalog.clock_timestamp()
     where g.lease = v_fence.current_lease and g.state = 'HELD';
    update pgfence.fences as f
       set paused_because = null, current_lease = null,
           issued_fence = greatest(f.issued_fence, f.highest_fence,
                                   (select c.fence_base from pgfence.configuration as c))
     where f.resource = p_resource
    returning v_fence.paused_because, f.issued_fence into paused_because, above;
    insert into pgfence.journal (action, resource, reason, detail)
    values ('RESUMED', p_resource, p_reason,
            pg_catalog.jsonb_build_object('paused_because', paused_because, 'above', above, 'ended_lease', v_fence.current_lease));
    perform pgfence_registry._wake_next(p_resource);
    return next;
end
$$;
-- next statement
revoke all on function pgfence.resume(text, text) from public;
-- next statement
comment on function pgfence.resume(text, text) is
    'Lets a paused resource go on, above every fence of before (R17, R37). Owner only. Raises PF301.';
