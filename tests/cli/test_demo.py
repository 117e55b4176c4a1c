"""`pgfence demo`, as people run it: a process, on a PostgreSQL of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from examples import make_invoices
from pgfence import demo, embedded
from tests.cli.documents import ROOT
from tests.support import PATIENCE, fast_folder, unavailable, wait_until

PROGRAM = [sys.executable, "-c", "from pgfence.cli import main; main()", "demo"]


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """An empty folder for the demo's temporary files, in memory where that is usual."""
    try:
        embedded.wheel_bin_dir()
    except embedded.EmbeddedServerError as error:
        unavailable(str(error))
    folder = (fast_folder() or tmp_path) / f"pgfence-demo-test-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def environment(scratch: Path) -> dict[str, str]:
    """What a shell with settings for some other server gives the demo."""
    return os.environ | {
        "TMPDIR": str(scratch),
        "HOME": "/nonexistent",
        "PYTHONPATH": str(ROOT),
        "PGHOST": "db.invalid",
        "PGSSLMODE": "verify-full",
        "PGOPTIONS": "-c default_transaction_read_only=on",
    }


def ordinary_user() -> dict[str, Any]:
    """Arguments of subprocess for a user who is not root, if there is one who can read the code."""
    if os.geteuid() != 0:
        return {}
    other: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}
    command = [sys.executable, "-c", "from pgfence import embedded; embedded.wheel_bin_dir()"]
    with suppress(OSError, subprocess.CalledProcessError):
        subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, check=True, **other)
        return other
    return {}


def test_the_demo_shows_the_stale_write_land_and_then_refused(scratch: Path) -> None:
    result = subprocess.run(
        [*PROGRAM, "--json", "--keep"],
        env=environment(scratch),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
    )
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    kept = told["kept"]
    try:
        unfenced, fenced = told["runs"]
        assert [a["outcome"] for a in unfenced["attempts"]] == ["WRITTEN"]
        assert (unfenced["invoices"], unfenced["wrong"]) == (2000, 40)
        assert unfenced["charged_cents"] > unfenced["due_cents"]
        assert {row["charged_by"] for row in unfenced["examples"]} == {"worker_a"}
        assert [(a["how"], a["outcome"]) for a in fenced["attempts"]] == [
            ("lease.apply", "NOT_HELD"),
            ("fenced_apply", "STALE_OWNER"),
            ("update", "NOT_ADMITTED"),
        ]
        assert (fenced["invoices"], fenced["wrong"]) == (2000, 0)
        assert fenced["charged_cents"] == fenced["due_cents"] == unfenced["due_cents"]

        answers = [query["rows"] for query in told["queries"]]
        assert [query["sql"] for query in told["queries"]] == [q for _, q in demo.questions()]
        receipts = [(r["fence_token"], r["segment_seq"], r["owner"]) for r in answers[1]]
        assert receipts == [
            *((1, segment, "worker-a") for segment in range(1, 5)),
            *((2, segment, "worker-b") for segment in range(1, 7)),
        ]
        assert answers[2] == [{"receipts": 10, "ok": True, "problem": None}]
        (refusal,) = answers[4]
        assert (refusal["verdict"], refusal["session_role"]) == ("STALE_OWNER", "worker_a")

        connected = shell(f"{kept['connect']} -At -c 'select count(*) from fenced.invoices'")
        assert connected.stdout == "2000\n", connected.stderr
    finally:
        shell(kept["stop"])
    pid_file = next(scratch.glob("pgfence-*/data")) / "postmaster.pid"
    wait_until(lambda: not pid_file.exists(), "the server has stopped")
    assert shell(kept["delete"]).returncode == 0
    assert list(scratch.iterdir()) == []


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True)


def test_an_ordinary_user_sees_the_demo_in_a_file_without_control_codes(scratch: Path) -> None:
    result = subprocess.run(
        PROGRAM,
        env=environment(scratch),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        **ordinary_user(),
    )
    said = result.stdout
    assert result.returncode == 0, said + result.stderr
    assert result.stderr == ""
    assert re.findall(r"[^\n -~]", said) == []
    for needle in ("SIGSTOP to process", "STALE_OWNER: fence 1 of", "NOT_ADMITTED", "40 of 2,000"):
        assert needle in said
    for question, query in demo.questions():
        assert f"\n{question}\n{query}\n" in said
    assert list(scratch.iterdir()) == []


def started(scratch: Path) -> tuple[subprocess.Popen[str], int, int]:
    """A demo whose worker A is stopped, and the process IDs of that worker and of the server."""
    process = subprocess.Popen(
        PROGRAM, env=environment(scratch), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    stops = (re.search(r"SIGSTOP to process (\d+)", line) for line in process.stdout)
    stopped = next(int(found[1]) for found in stops if found)
    server = next(scratch.glob("pgfence-*/data/postmaster.pid")).read_text().split()[0]
    return process, stopped, int(server)


def test_a_demo_that_is_killed_leaves_no_stopped_worker_and_no_server(scratch: Path) -> None:
    process, stopped, server = started(scratch)
    process.kill()
    process.communicate()
    wait_until(partial(is_gone, stopped), "the stopped worker has ended")
    wait_until(partial(is_gone, server), "the server has ended")
    wait_until(lambda: not list(scratch.glob("pgfence-*/data/*")), "the data is deleted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_leaves_nothing(scratch: Path, number: signal.Signals) -> None:
    process, stopped, server = started(scratch)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == 130
    assert is_gone(stopped)
    assert is_gone(server)
    assert list(scratch.iterdir()) == []


def is_gone(pid: int) -> bool:
    """Whether the process has ended, though nobody may be there to collect its exit code."""
    try:
        os.kill(pid, 0)
        return ") Z " in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_the_invoices_are_those_that_the_script_writes() -> None:
    written = (ROOT / "examples" / "invoices.csv").read_text(encoding="utf-8")
    assert written.splitlines() == make_invoices.lines()
