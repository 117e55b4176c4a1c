"""What the database can prove afterwards. Needs a role in pgfence_auditor."""
