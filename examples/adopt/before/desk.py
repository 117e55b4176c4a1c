"""Takes something off an invoice: python -m adopt.before.desk 17 250"""

import sys

from sqlalchemy.orm import Session

from ..models import Credit, database


def main(invoice_id: int, cents: int) -> None:
    with database().begin() as session:
        write(session, invoice_id, cents)


def write(session: Session, invoice_id: int, cents: int) -> None:
    """The credit, in place of one that was there."""
    session.merge(Credit(invoice_id=invoice_id, cents=cents))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
