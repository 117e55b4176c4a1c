"""docs/adopt.md is true: its shell and SQL run, in order, and its Python is the example's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pgfence.embedded import Server
from pgfence.install import source_dir
from tests.cli.documents import ROOT, blocks, program, script
from tests.support import PATIENCE, fast_folder

PAGE = ROOT / "docs" / "adopt.md"
EXAMPLE = ROOT / "examples" / "adopt"


def test_the_python_of_the_page_is_that_of_the_example() -> None:
    shown = set()
    for block in blocks(PAGE):
        name, _, text = block.text.partition("\n")
        if block.language in ("python", "ini") and not name.endswith(".service"):
            path = EXAMPLE / name.removeprefix("# ")
            assert text.rstrip("\n") in path.read_text(encoding="utf-8"), f"line {block.line}"
            shown.add(path.name)
    programs = {"nightly.py", "statements.py", "balances.py", "desk.py"}
    assert shown == programs | {"0002_protect.py", "alembic.ini"}


def test_the_page_goes_from_an_empty_server_to_enforced(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "adopt")
    ini = tmp_path / "adopt" / "alembic.ini"
    # What a wheel has in the package stands beside it in a checkout.
    ours = str(source_dir("migrations") / "versions")
    ini.write_text(ini.read_text().replace("pgfence:migrations/versions", ours))
    bin_dir = program(tmp_path / "bin").parent
    (bin_dir / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (bin_dir / "python3").chmod(0o755)
    page = [block for block in blocks(PAGE) if block.language in ("sh", "sql")]
    with Server(parent=fast_folder()) as server:
        environment = {name: v for name, v in os.environ.items() if not name.startswith("PG")}
        result = subprocess.run(
            ["bash", "-c", script(server, page)],
            cwd=tmp_path,
            env=environment
            | {
                "PATH": f"{bin_dir}:{os.environ['PATH']}",
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
    for prefix, accepted, not_admitted in (
        ("account/", 20, 0),
        ("credit/", 0, 2),
        ("invoice-batch/", 2, 2),
        ("statement/", 5, 0),
    ):
        row = rf"^\| {prefix} +\| SHADOW .*\| +{accepted} \| +0 \| +{not_admitted} \|$"
        assert re.search(row, said, re.MULTILINE), prefix
    assert re.search(r"^\| NOT_ADMITTED .* credit/402 .* billing_desk ", said, re.MULTILINE)
    assert "\ninvoice-batch/ is enforced\n" in said
    assert "\ncredits: a row belongs to the resource credit/402\n" in said
