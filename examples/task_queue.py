"""A worker of a job queue (task_queue.sql): it claims a task, works on it, writes the answer.

    PGFENCE_DSN=postgresql://... python task_queue.py [--wait]

Any number may run. A task is a resource, and a claim is a lease on it: a worker that dies or is
too slow loses its claim, and another one takes the task. The slow one may still believe in its
claim; PostgreSQL does not, so it cannot overwrite the other's answer. FOR UPDATE SKIP LOCKED only
spreads the workers over the tasks: it ends with its statement, while the work may take minutes.

It ends when everything is answered. What happens is told in lines of JSON. --wait: wait for a line
on standard input when an answer is found and not yet written.
"""

import argparse
import json
import os
import sys
import time
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row

import pgfence

CLAIM_SECONDS = 3.0

Connection = psycopg.Connection[Any]


class Task(NamedTuple):
    """What is to be done."""

    task_id: int
    question: str

    @property
    def resource(self) -> str:
        """What a worker must hold to answer it."""
        return f"task/{self.task_id}"


def main() -> None:
    """Answer what there is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait", action="store_true")
    wait = parser.parse_args().wait
    dsn = os.environ["PGFENCE_DSN"]
    with pgfence.connect(dsn) as fence, psycopg.connect(dsn, autocommit=True) as conn:
        while is_open(conn):
            task = candidate(conn)
            if task is None:
                time.sleep(0.1)
            else:
                work_on(fence, task, wait)


def is_open(conn: Connection) -> bool:
    """Whether anything is left to do."""
    return conn.execute("select from tasks where not answered limit 1").fetchone() is not None


def candidate(conn: Connection) -> Task | None:
    """A task that nobody else looks at just now."""
    return (
        conn.cursor(row_factory=class_row(Task))
        .execute(
            "update tasks set next_try = clock_timestamp() + %s * interval '1 second'"
            " where task_id = (select task_id from tasks"
            "   where not answered and next_try <= clock_timestamp()"
            "   order by next_try, task_id limit 1 for update skip locked)"
            " returning task_id, question",
            [CLAIM_SECONDS],
        )
        .fetchone()
    )


def work_on(fence: pgfence.Fence, task: Task, wait: bool) -> None:
    """Claim a task, find the answer, write it; or leave it to whoever has it."""
    try:
        with fence.hold(task.resource, operation="answer", ttl=CLAIM_SECONDS, timeout=0) as claim:
            # From here on nobody else can change what we read of the task.
            if claim.position().last_segment:
                return
            tell("claimed", task, fence_token=claim.fence_token)
            answer = task.question.upper()
            if wait:
                sys.stdin.readline()
            claim.apply({"answer": answer}, lambda tx: write(tx, task, answer))
            tell("answered", task)
    except pgfence.AcquireTimeoutError:
        tell("claimed by another", task)
    except (pgfence.NotHeldError, pgfence.LeaseEndedError, pgfence.StaleOwnerError) as error:
        tell("given up", task, says=str(error))


def write(tx: Connection, task: Task, answer: str) -> None:
    """The rows of the one segment that a task has."""
    tx.execute("insert into answers (task_id, answer) values (%s, %s)", [task.task_id, answer])
    tx.execute("update tasks set answered = true where task_id = %s", [task.task_id])


def tell(event: str, task: Task, **fields: object) -> None:
    """One line of JSON for whoever started us."""
    print(json.dumps({"event": event, "task_id": task.task_id} | fields), flush=True)


if __name__ == "__main__":
    main()
