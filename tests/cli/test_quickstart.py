"""docs/quickstart.md is true: its blocks run, in order, on an empty server; README's Python too."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from pgfence.embedded import Server
from tests.cli.documents import ROOT, blocks, program, script
from tests.registry import registry
from tests.support import PATIENCE, Database, Keys, fast_folder

PAGE = ROOT / "docs" / "quickstart.md"


def test_the_quickstart_goes_from_an_empty_server_to_a_receipt_and_a_refused_write(
    tmp_path: Path,
) -> None:
    with Server(parent=fast_folder()) as server:
        environment = {name: v for name, v in os.environ.items() if not name.startswith("PG")}
        result = subprocess.run(
            ["bash", "-c", script(server, blocks(PAGE))],
            cwd=tmp_path,
            env=environment
            | {
                "PATH": f"{program(tmp_path / 'bin').parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "PGHOST": "127.0.0.1",
                "PGPORT": str(server.port),
            },
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE,
        )
    said = result.stdout
    assert result.returncode == 0, said + result.stderr
    assert "root.key (made)" in said
    assert "settlement-b" in said
    assert "sales.invoices is protected: invoice-batch/{batch_date}" in said
    assert "segment 1 of fence 1 is" in said
    assert "segment 1 of fence 2 from a task" in said
    assert "PF201 sales.invoices: a row belongs to the resource invoice-batch/2026-07-19" in said
    assert "1 of 1 chains are whole, 2 receipts" in said
    assert "nothing was refused" in said


def test_the_python_of_the_readme_runs_as_it_stands_there(database: Database, keys: Keys) -> None:
    (example,) = (b.text for b in blocks(ROOT / "README.md") if b.language == "python")
    example, replaced = re.subn(
        r'connect\("[^"]+"\)', f"connect({database.dsn('worker_a')!r})", example
    )
    assert replaced == 1
    settled: list[int] = []
    with registry(database, keys):
        exec(example, {"pages": [1, 2], "settle": lambda tx, page: settled.append(page)})
    assert settled == [1, 2]
