"""A process that maps, for tests that interrupt it: python -m tests.faults.mapper

Settles the invoices one by one. The computation of the fourth says so and takes its time.
PGFENCE_DSN: where it connects. Argument: resource.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pgfence
from tests.faults.worker import say


def main(resource: str) -> None:
    with (
        pgfence.connect(os.environ["PGFENCE_DSN"]) as fence,
        fence.hold(resource, operation="settle", ttl=60) as lease,
    ):

        def compute(invoice: int) -> int:
            if invoice == 4:
                say("computing")
                lease.lost.wait(3)
            return invoice

        def work(tx: Any, invoice: int) -> None:
            tx.execute("update invoices set state = 'by A' where id = %s", [invoice])

        lease.map(compute, range(1, 11), work, workers=2)


if __name__ == "__main__":
    main(sys.argv[1])
