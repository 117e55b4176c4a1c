"""Charges the invoices of a day, page by page: python -m adopt.before.nightly 2026-07-19"""

import sys
from collections.abc import Iterator
from datetime import date

from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from ..models import Credit, Invoice, database
from .locks import locked

PAGE = 100


def main(day: str) -> None:
    sessions = database()
    with locked(sessions, f"invoice-batch/{day}") as look:
        for page in pages(sessions, day):
            charged = charges(sessions, page)
            look()
            with sessions.begin() as session:
                write(session, charged)


def pages(sessions: sessionmaker[Session], day: str) -> Iterator[list[int]]:
    """The invoices of the day."""
    with sessions() as session:
        query = select(Invoice.invoice_id).where(Invoice.batch_date == date.fromisoformat(day))
        ids = session.scalars(query.order_by(Invoice.invoice_id)).all()
    return (list(ids[start : start + PAGE]) for start in range(0, len(ids), PAGE))


def charges(sessions: sessionmaker[Session], page: list[int]) -> dict[int, int]:
    """What each invoice is charged: what is due less its credit. Slow, in earnest."""
    with sessions() as session:
        rows = session.execute(
            select(Invoice.invoice_id, Invoice.due_cents, Credit.cents)
            .outerjoin(Credit)
            .where(Invoice.invoice_id.in_(page))
        )
        return {invoice: due - (credit or 0) for invoice, due, credit in rows}


def write(session: Session, charged: dict[int, int]) -> None:
    """The rows of a page."""
    rows = [{"invoice_id": i, "charged_cents": cents} for i, cents in charged.items()]
    session.execute(update(Invoice), rows)


if __name__ == "__main__":
    main(sys.argv[1])
