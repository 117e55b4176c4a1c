"""The queue worker, behind the fence: python -m adopt.after.statements"""

from sqlalchemy.orm import Session, sessionmaker

import pgfence

from ..before.statements import claim, compose, write  # as they were
from ..models import Job, database


def main() -> None:
    sessions = database()
    with pgfence.connect(sessions) as fence:
        while (invoice_id := claim(sessions)) is not None:
            try:
                answer(fence, sessions, invoice_id)
            except (
                pgfence.AcquireTimeoutError,
                pgfence.NotHeldError,
                pgfence.StaleOwnerError,
                pgfence.LeaseEndedError,
            ):
                print(f"statement {invoice_id} is another worker's")


def answer(fence: pgfence.Fence[Session], sessions: sessionmaker[Session], invoice_id: int) -> None:
    with fence.hold(f"statement/{invoice_id}", operation="write", ttl=30, timeout=0) as lease:
        with sessions() as session:
            if session.get_one(Job, invoice_id).done:
                return  # by whoever had it before: nothing of theirs can come any more
        text = compose(sessions, invoice_id)
        lease.apply({"text": text}, lambda session: write(session, invoice_id, text))


if __name__ == "__main__":
    main()
