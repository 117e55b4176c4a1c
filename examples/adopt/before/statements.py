"""Writes the statements that are in the queue, and ends: python -m adopt.before.statements"""

from datetime import timedelta

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, sessionmaker

from ..models import Invoice, Job, Statement, database

CLAIM = timedelta(seconds=30)


def main() -> None:
    sessions = database()
    while (invoice_id := claim(sessions)) is not None:
        text = compose(sessions, invoice_id)
        with sessions.begin() as session:
            write(session, invoice_id, text)


def claim(sessions: sessionmaker[Session]) -> int | None:
    """A job that nobody else is at, and that nobody else gets for a while."""
    due = (
        select(Job.invoice_id)
        .where(~Job.done, Job.next_try <= func.now())
        .order_by(Job.next_try)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    with sessions.begin() as session:
        return session.scalar(
            update(Job)
            .where(Job.invoice_id == due.scalar_subquery())
            .values(next_try=func.now() + CLAIM)
            .returning(Job.invoice_id)
        )


def compose(sessions: sessionmaker[Session], invoice_id: int) -> str:
    """The text. Slow, in earnest."""
    with sessions() as session:
        return f"You owe {session.get_one(Invoice, invoice_id).charged_cents} cents."


def write(session: Session, invoice_id: int, text: str) -> None:
    """The statement; the job is done."""
    session.merge(Statement(invoice_id=invoice_id, text=text))
    session.execute(update(Job).where(Job.invoice_id == invoice_id).values(done=True))


if __name__ == "__main__":
    main()
