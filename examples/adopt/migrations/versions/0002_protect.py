"""Each table is written by the owner of a lease. (In shadow: should be.)"""

from alembic import op

revision = "0002_protect"
down_revision = "0001_tables"
depends_on = "pgfence"

RESOURCES = {
    "invoices": "invoice-batch/{batch_date}",
    "credits": "credit/{invoice_id}",
    "statements": "statement/{invoice_id}",
    "accounts": "account/{account_id}",
}


def upgrade() -> None:
    for table, template in RESOURCES.items():
        op.execute(f"select pgfence.protect('{table}', '{template}')")


def downgrade() -> None:
    for table in RESOURCES:
        op.execute(f"select pgfence.unprotect('{table}')")
