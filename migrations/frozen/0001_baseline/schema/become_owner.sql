-- Everything from here on is made by, and belongs to, pgfence_owner.
set local role pgfence_owner;
