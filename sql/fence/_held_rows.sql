-- Who keeps others waiting for a row of pgfence: whoever waits has the lock of the tuple, and waits for the
-- transaction of the one who holds the row. holder is null for a prepared transaction.
create view pgfence._held_rows as
select t.relation::regclass as relation, pg_catalog.format('(%s,%s)', t.page, t.tuple)::tid as at,
       h.pid as holder, h.virtualtransaction as transaction, x.pid as waiter, x.waitstart as since
  from pg_catalog.pg_locks as t
  join pg_catalog.pg_database as d on d.oid = t.database and d.datname = pg_catalog.current_database()
  join pg_catalog.pg_locks as x on x.pid = t.pid and x.locktype = 'transactionid' and not x.granted
  join pg_catalog.pg_locks as h on h.locktype = 'transactionid' and h.transactionid = x.transactionid and h.granted
 where t.locktype = 'tuple' and t.granted;

comment on view pgfence._held_rows is
    'Rows that somebody waits for, by relation and ctid: the session and transaction that holds the row, who waits, since when (R20).';

grant select on pgfence._held_rows to pgfence_auditor;
