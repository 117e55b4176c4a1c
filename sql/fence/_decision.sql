-- What the rules say of a call: the answer, or, where a segment was admitted, what its receipt needs.
-- One of the two is null.
create type pgfence._decision as (
    answer    pgfence.verdict,
    admission pgfence._admission
);

comment on type pgfence._decision is 'A verdict, or a segment that is admitted and wants its receipt.';
