"""The desk, behind the fence: python -m adopt.after.desk 17 250"""

import sys

from sqlalchemy.orm import Session

import pgfence

from ..before.desk import write  # as it was
from ..models import database


def main(invoice_id: int, cents: int) -> None:
    def work(session: Session) -> None:
        write(session, invoice_id, cents)

    with (
        pgfence.connect(database()) as fence,
        fence.hold(f"credit/{invoice_id}", operation="credit", timeout=5) as lease,
    ):
        try:
            lease.apply({"cents": cents}, work)
        except pgfence.MutationUnknownError:
            lease.apply({"cents": cents}, work)  # it stands: its receipt. It does not: now it does


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
