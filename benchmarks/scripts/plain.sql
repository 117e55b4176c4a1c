-- No fence at all.
update free_invoices set settled = settled + 1 where id = :client_id;
