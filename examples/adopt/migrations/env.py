"""`alembic upgrade heads`, into the database that BILLING_DSN names."""

from adopt.models import Base, url  # type: ignore[import-not-found]  # found by alembic.ini
from alembic import context
from sqlalchemy import NullPool, create_engine

with create_engine(url(), poolclass=NullPool).connect() as connection:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()
