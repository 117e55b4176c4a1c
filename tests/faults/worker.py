"""A worker process that tests stop and continue: python -m tests.faults.worker

Says what happens to it as lines of JSON on stdout. At an empty line on stdin it writes once more
and commits, at any other it only commits.
PGFENCE_DSN: where it connects; PGFENCE_REGISTRY: the registry's database, if it is another one.
HEEDLESS=1: it does not stop by itself when its lease is lost, so that only the server can stop it.
Arguments: resource, ttl in seconds, and statements that it runs in its open segment before it
waits.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pgfence


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event} | fields), flush=True)


def main(resource: str, ttl: float, statements: list[str]) -> None:
    if os.environ.get("HEEDLESS"):
        heedless: Any = pgfence.Lease
        heedless._must_stop = lambda lease: False
        heedless._stop_work = lambda lease: None
    registry = os.environ.get("PGFENCE_REGISTRY")
    fence = pgfence.connect(os.environ["PGFENCE_DSN"], registry=registry)
    say("connected")
    with fence.hold(resource, operation="settle", ttl=ttl) as lease:
        say("held", fence_token=lease.fence_token, root=lease.operation_root)

        def work(tx: Any) -> None:
            for statement in statements:
                tx.execute(statement)
            say("in work", pid=tx.info.backend_pid)
            if sys.stdin.readline() == "\n":
                tx.execute("update invoices set state = 'by A, late' where id = 2")

        for segment in (1, 1):
            try:
                receipt = lease.apply({"page": 1}, work, segment=segment)
            except Exception as error:
                say("failed", error=type(error).__name__, message=str(error))
            else:
                say("applied", segment=receipt.segment_seq, replayed=receipt.replayed)
    say("left")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
