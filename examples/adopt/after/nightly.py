"""The nightly batch, behind the fence: python -m adopt.after.nightly 2026-07-19"""

import sys

import pgfence

from ..before.nightly import charges, pages, write  # as they were
from ..models import database


def main(day: str) -> None:
    sessions = database()
    batch = f"invoice-batch/{day}"
    with (
        pgfence.connect(sessions) as fence,
        fence.hold(batch, operation="settle", ttl=30, take_up=True, timeout=0) as lease,
    ):
        lease.map(lambda page: charges(sessions, page), pages(sessions, day), write)


if __name__ == "__main__":
    main(sys.argv[1])
