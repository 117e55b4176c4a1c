-- The resources admitted in this very transaction (R24): what pgfence._is_admitted says of a fence
-- row, as a view, because the guard asks it for every statement and a view is inlined. When the lease
-- is over nothing more is written, also where no look at COMMIT comes after (a cursor WITH HOLD is
-- filled behind it).
create view pgfence.admitted_resources as
select f.resource
from pgfence.fences as f
where f.admitted_transaction = pg_catalog.pg_current_xact_id_if_assigned()
  and f.admitted_transaction_start = current_timestamp
  and f.admitted_backend = pg_catalog.pg_backend_pid()
  and f.admitted_until > pg_catalog.clock_timestamp();

comment on view pgfence.admitted_resources is 'The resources that fenced_apply admitted in this very transaction (R24).';
