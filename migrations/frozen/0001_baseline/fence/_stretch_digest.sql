-- Digest of a pruned stretch over everything that it says, so that an edited one shows (R22). No part but
-- the last can hold a space, so the text can be read in one way only.
create function pgfence._stretch_digest(p_stretch pgfence.pruned_stretches)
returns bytea
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.concat_ws(' ',
        'stretch.v1', pg_catalog.encode(p_stretch.previous_digest, 'hex'), p_stretch.resource, p_stretch.from_fence,
        p_stretch.from_segment, p_stretch.to_fence, p_stretch.to_segment, p_stretch.receipts,
        pg_catalog.encode(p_stretch.last_digest, 'hex'),
        (pg_catalog.date_part('epoch', p_stretch.pruned_at) * 1000000)::bigint, p_stretch.pruned_by), 'UTF8'));
end
$$;
-- next statement
revoke all on function pgfence._stretch_digest(pgfence.pruned_stretches) from public;
-- next statement
comment on function pgfence._stretch_digest(pgfence.pruned_stretches) is
    'SHA-256 over a pruned stretch of receipts (R22).';
