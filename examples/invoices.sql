-- A batch of invoices, and credit notes that customer service may book at any time. An invoice is
-- settled when it is charged: its amount less its credit notes.
create table invoices (
    invoice_id    bigint primary key,
    batch_date    date   not null,
    customer      text   not null,
    amount_cents  bigint not null,
    charged_cents bigint,
    charged_by    text
);

create table credit_notes (
    invoice_id bigint not null references invoices,
    cents      bigint not null
);

-- What should have been charged. Right is: due_cents = charged_cents, for every invoice.
create view settlement as
select i.invoice_id, i.batch_date, i.customer, i.amount_cents, coalesce(c.cents, 0) as credit_cents,
       i.amount_cents - coalesce(c.cents, 0) as due_cents, i.charged_cents, i.charged_by
  from invoices as i
  left join (select n.invoice_id, sum(n.cents)::bigint as cents from credit_notes as n group by 1) as c
         on c.invoice_id = i.invoice_id;
