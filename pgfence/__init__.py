"""Fencing tokens enforced inside PostgreSQL: a stale lock owner cannot write."""
