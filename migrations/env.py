"""`alembic upgrade heads` in a checkout: PGFENCE_DSN, or -x dsn=…, says into which database.

Alembic notes the revision in a table of its own name, so that it does not collide with the
`alembic_version` of an application; it stands in the first schema of the installer's search_path.
"""

import os

import psycopg
from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from pgfence.install import ALEMBIC_TABLE


def run() -> None:
    """Run the revisions, or print their SQL (`--sql`)."""
    if context.is_offline_mode():
        context.configure(dialect_name="postgresql", version_table=ALEMBIC_TABLE)
        with context.begin_transaction():
            context.run_migrations()
        return
    dsn = context.get_x_argument(as_dictionary=True).get("dsn") or os.environ.get("PGFENCE_DSN")
    if not dsn:
        raise SystemExit("Which database? Set PGFENCE_DSN, or give -x dsn=postgresql://…")
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), poolclass=NullPool
    )
    with engine.connect() as connection:
        context.configure(connection=connection, version_table=ALEMBIC_TABLE)
        with context.begin_transaction():
            context.run_migrations()


run()
