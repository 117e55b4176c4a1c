"""examples/task_queue.py: workers, or agents, that claim tasks."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

import pgfence
from examples import task_queue
from tests.examples.conftest import EXAMPLES, LEASE_ENDED, started
from tests.guarded import refused
from tests.support import PATIENCE, Database, wait_until

WORKER = ["python3", "task_queue.py"]


@pytest.fixture
def tasks(guarded: Database) -> psycopg.Connection[Any]:
    """The queue, as its owner sees it."""
    owner = guarded.connect("billing_owner")
    owner.execute((EXAMPLES / "task_queue.sql").read_bytes())
    owner.execute("grant select, insert, update on tasks, answers to pgfence_app")
    owner.execute("select pgfence.protect('answers', 'task/{task_id}')")
    return owner


def ask(tasks: psycopg.Connection[Any], count: int) -> None:
    tasks.execute(
        "insert into tasks (question) select 'q' || i from generate_series(1, %s) as i", [count]
    )


def answers(tasks: psycopg.Connection[Any]) -> list[tuple[int, str, str]]:
    query = "select task_id, answer, answered_by from answers order by task_id"
    return tasks.execute(query).fetchall()


def test_each_task_is_answered_once_however_many_workers_there_are(
    guarded: Database, tasks: psycopg.Connection[Any], tools: dict[str, str]
) -> None:
    ask(tasks, 20)
    said = []
    with ExitStack() as stack:
        workers = [
            stack.enter_context(started(WORKER, tools | {"PGFENCE_DSN": guarded.dsn(role)}))
            for role in ("worker_a", "worker_a", "worker_b")
        ]
        for worker in workers:
            out, _ = worker.communicate(timeout=PATIENCE)
            assert worker.returncode == 0, out
            said += [json.loads(line) for line in out.splitlines()]
    assert [(n, text) for n, text, _ in answers(tasks)] == [(n, f"Q{n}") for n in range(1, 21)]
    answered = [event["task_id"] for event in said if event["event"] == "answered"]
    assert sorted(answered) == list(range(1, 21))


@pytest.mark.rule("R10", "R23", "R42")
def test_a_worker_that_was_given_up_cannot_overwrite_the_answer(
    guarded: Database, tasks: psycopg.Connection[Any], tools: dict[str, str]
) -> None:
    ask(tasks, 1)
    env = {role: tools | {"PGFENCE_DSN": guarded.dsn(role)} for role in ("worker_a", "worker_b")}
    with started([*WORKER, "--wait"], env["worker_a"]) as slow:
        assert json.loads(slow.stdout.readline())["event"] == "claimed"
        slow.send_signal(signal.SIGSTOP)
        with started(WORKER, env["worker_b"]) as other:
            out, _ = other.communicate(timeout=PATIENCE)
        events = [json.loads(line)["event"] for line in out.splitlines()]
        assert events[-2:] == ["claimed", "answered"]
        slow.send_signal(signal.SIGCONT)
        slow.stdin.write("\n")
        slow.stdin.flush()
        assert json.loads(slow.stdout.readline())["event"] == "given up"
        assert slow.wait(PATIENCE) == 0
    with refused("PF201"):
        guarded.connect("worker_a").execute("update answers set answer = 'mine'")
    assert answers(tasks) == [(1, "Q1", "worker_b")]


@pytest.mark.rule("R19")
def test_a_worker_whose_claim_ends_while_it_writes_gives_the_task_up(
    guarded: Database,
    tasks: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask(tasks, 1)
    real = task_queue.write

    def write(tx: psycopg.Connection[Any], task: task_queue.Task, answer: str) -> None:
        real(tx, task, answer)
        tx.execute(LEASE_ENDED)

    monkeypatch.setattr(task_queue, "write", write)
    with pgfence.connect(guarded.dsn("worker_a")) as fence:
        task_queue.work_on(fence, task_queue.Task(1, "q1"), wait=False)
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert events == ["claimed", "given up"]
    assert answers(tasks) == []


@pytest.mark.rule("R36")
def test_the_task_of_a_worker_that_died_is_taken_by_another_one(
    guarded: Database, tasks: psycopg.Connection[Any], tools: dict[str, str]
) -> None:
    ask(tasks, 2)
    with started([*WORKER, "--wait"], tools | {"PGFENCE_DSN": guarded.dsn("worker_a")}) as dies:
        assert json.loads(dies.stdout.readline())["event"] == "claimed"
    wait_until(lambda: dies.poll() is not None, "it is dead")
    with started(WORKER, tools | {"PGFENCE_DSN": guarded.dsn("worker_b")}) as other:
        assert other.wait(PATIENCE) == 0
    assert answers(tasks) == [(1, "Q1", "worker_b"), (2, "Q2", "worker_b")]
