"""The registry process: it signs what the database has decided."""
