"""What the examples work on, and programs to start them with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.documents import ROOT, program, psql_program
from tests.registry import registry
from tests.support import Database, Keys

EXAMPLES = ROOT / "examples"
BATCH_DATE = "2026-07-19"
BATCH = f"invoice-batch/{BATCH_DATE}"
#: What COMMIT says where the lease ended in the transaction (R19).
LEASE_ENDED = "do $$ begin raise exception sqlstate 'PF203'; end $$"


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has `pgfence`, `python3` and `psql`."""
    folder = program(tmp_path / "bin").parent
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return os.environ | {
        "PATH": f"{folder}:{psql_program().parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PGOPTIONS": "",
    }


@pytest.fixture
def guarded(database: Database, keys: Keys) -> Iterator[Database]:
    """The database, with a registry that signs."""
    with registry(database, keys):
        yield database


@pytest.fixture
def invoices(guarded: Database) -> Database:
    """examples/invoices.sql with a batch of 500 invoices of 100 cents, each credited 1 cent."""
    owner = guarded.connect("billing_owner")
    owner.execute((EXAMPLES / "invoices.sql").read_bytes())
    owner.execute(
        "insert into invoices select i, %s, 'customer', 100 from generate_series(1, 500) as i",
        [BATCH_DATE],
    )
    owner.execute("insert into credit_notes select i, 1 from generate_series(1, 500) as i")
    owner.execute("grant select, update on invoices to pgfence_app")
    owner.execute("grant select on credit_notes, settlement to pgfence_app")
    owner.execute("select pgfence.protect('invoices', 'invoice-batch/{batch_date}')")
    return guarded


@contextmanager
def started(command: list[str], env: dict[str, str], **options: Any) -> Iterator[Any]:
    """A process whose output is read; killed at the end if it still runs."""
    process = subprocess.Popen(
        command,
        cwd=EXAMPLES,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def settled(database: Database) -> list[tuple[str | None, int]]:
    """Who has settled how many invoices rightly; the invoices that are wrong are by nobody."""
    return (
        database.connect()
        .execute(
            "select case when charged_cents = due_cents then charged_by end, count(*)"
            " from settlement group by 1 order by 1"
        )
        .fetchall()
    )


def receipts(database: Database) -> list[tuple[str, int, int]]:
    """Resource, fence token and segment of every receipt, in the order of acceptance."""
    return (
        database.connect("auditor")
        .execute("select resource, fence_token, segment_seq from pgfence.receipts"
                 " order by accepted_at")
        .fetchall()
    )  # fmt: skip
