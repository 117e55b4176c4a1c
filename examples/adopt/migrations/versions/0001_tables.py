"""The tables of the service."""

from alembic import op

revision = "0001_tables"
down_revision = None


def upgrade() -> None:
    op.execute("""
        create table invoices (
            invoice_id bigint primary key, batch_date date not null, due_cents bigint not null,
            charged_cents bigint);
        create table credits (
            invoice_id bigint primary key references invoices, cents bigint not null);
        create table jobs (
            invoice_id bigint primary key references invoices, done boolean not null default false,
            next_try timestamptz not null default now());
        create table statements (
            invoice_id bigint primary key references invoices, text text not null);
        create table accounts (account_id bigint primary key, balance_cents bigint);
        create table locks (name text primary key, holder text not null, until timestamptz not null)
    """)
