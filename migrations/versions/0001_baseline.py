"""The first schema of pgfence.

Runs the files that migrations/frozen.lock lists under this revision, in that order, and nothing
else. Needs no package but Alembic, so that it runs in anybody's Alembic environment.
"""

import hashlib
from pathlib import Path

from alembic import op
from sqlalchemy import text

revision = "0001_baseline"
down_revision = None
branch_labels = ("pgfence",)
depends_on = None

MIGRATIONS = Path(__file__).resolve().parent.parent
SEPARATOR = "\n-- next statement\n"


def statements() -> list[str]:
    """The frozen statements of this revision; RuntimeError if a file is not as it was frozen."""
    found = []
    for line in (MIGRATIONS / "frozen.lock").read_text(encoding="utf-8").splitlines():
        digest, name = line.split()
        if name.startswith(f"{revision}/"):
            content = (MIGRATIONS / "frozen" / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != digest:
                raise RuntimeError(f"migrations/frozen/{name} is not as it was frozen")
            found += content.decode().strip().split(SEPARATOR)
    return found


def upgrade() -> None:
    """Install; does nothing where pgfence is already installed, by whatever means."""
    context = op.get_context()
    if context.as_sql:
        for statement in statements():
            context.impl.static_output(statement)
        return
    connection = op.get_bind()
    installed = connection.scalar(
        text(
            "select count(*) from pg_catalog.pg_proc as p"
            " join pg_catalog.pg_namespace as n on n.oid = p.pronamespace"
            " where n.nspname = 'pgfence' and p.proname = 'schema_version'"
        )
    )
    if installed:
        return
    for statement in statements():
        # Straight to the driver: neither : nor % in a statement is a parameter.
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def downgrade() -> None:
    """Refused: the receipts are evidence, and dropping them is for a person to decide."""
    raise NotImplementedError(
        "pgfence does not remove itself. To lose all fences, receipts and grants for good:"
        " drop schema pgfence, pgfence_registry cascade"
    )
