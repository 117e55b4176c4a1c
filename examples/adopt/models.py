"""The tables of a small billing service. They are the same before and after."""

import os
from datetime import date, datetime

from sqlalchemy import URL, ForeignKey, create_engine, make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker


class Base(DeclarativeBase):
    """The service's tables."""


class Invoice(Base):
    """What a customer is charged for a day: by the nightly batch of that day."""

    __tablename__ = "invoices"
    invoice_id: Mapped[int] = mapped_column(primary_key=True)
    batch_date: Mapped[date]
    due_cents: Mapped[int]
    charged_cents: Mapped[int | None]


class Credit(Base):
    """What is taken off an invoice: by people, at the desk."""

    __tablename__ = "credits"
    invoice_id: Mapped[int] = mapped_column(ForeignKey(Invoice.invoice_id), primary_key=True)
    cents: Mapped[int]


class Job(Base):
    """The queue: statements to be written. Nobody else looks at a job until next_try."""

    __tablename__ = "jobs"
    invoice_id: Mapped[int] = mapped_column(ForeignKey(Invoice.invoice_id), primary_key=True)
    done: Mapped[bool]
    next_try: Mapped[datetime]


class Statement(Base):
    """What the customer gets to read: by the workers of the queue."""

    __tablename__ = "statements"
    invoice_id: Mapped[int] = mapped_column(ForeignKey(Invoice.invoice_id), primary_key=True)
    text: Mapped[str]


class Account(Base):
    """What the bank says: by the asyncio worker."""

    __tablename__ = "accounts"
    account_id: Mapped[int] = mapped_column(primary_key=True)
    balance_cents: Mapped[int | None]


def url(driver: str = "psycopg") -> URL:
    """The database, as BILLING_DSN has it."""
    return make_url(os.environ["BILLING_DSN"]).set(drivername=f"postgresql+{driver}")


def database() -> sessionmaker[Session]:
    """Sessions of it."""
    return sessionmaker(create_engine(url()))
