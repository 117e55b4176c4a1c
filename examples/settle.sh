#!/bin/sh
# A shell script that settles a batch of invoices (invoices.sql) with psql, 200 at a time.
#
#     pgfence run --resource invoice-batch/DATE --operation settle [--take-up] \
#         -- sh settle.sh DATE
#
# pgfence run holds the batch meanwhile and puts the grant into the environment. A page is one
# segment: one transaction that shows the grant, and writes only if it was let in. With --take-up
# it takes up where the operation before it stopped. With --registry, for a registry in another
# database, the latest status proof is shown too.
set -eu
batch_date=$1
page=$((PGFENCE_SEGMENTS_DONE + 1))
segment=$PGFENCE_NEXT_SEGMENT

sql() {
    psql --no-psqlrc --quiet --tuples-only --no-align -v ON_ERROR_STOP=1 \
        -v batch_date="$batch_date" -v page="$page" -v segment="$segment" "$PGFENCE_DSN"
}

pages=$(sql <<'SQL'
select ceil(count(*) / 200.0) from invoices where batch_date = :'batch_date';
SQL
)

while [ "$page" -le "$pages" ]; do
    verdict=$(sql <<'SQL'
\set grant `echo "$PGFENCE_GRANT"`
\set status `cat "${PGFENCE_STATUS_FILE:-/dev/null}"`
begin;
select verdict, verdict in ('ACCEPTED', 'WOULD_REFUSE') as lets_write
  from pgfence.fenced_apply(:'grant', :segment, '{"page": ' || :page || '}', nullif(:'status', '')) \gset
\echo :verdict
\if :lets_write
update invoices as i set charged_cents = s.due_cents, charged_by = session_user
  from (select invoice_id, due_cents from settlement where batch_date = :'batch_date'
         order by invoice_id limit 200 offset 200 * (:page - 1)) as s
 where i.invoice_id = s.invoice_id;
\endif
commit;
SQL
    )
    case $verdict in
    ACCEPTED | REPLAYED | WOULD_REFUSE) echo "page $page of $pages: $verdict" ;;
    *)
        echo "page $page of $pages was refused: $verdict" >&2
        exit 1
        ;;
    esac
    page=$((page + 1))
    segment=$((segment + 1))
done
