"""docker-compose.yml: its shell lines, without containers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.documents import ROOT
from tests.support import PATIENCE


@pytest.mark.parametrize(
    ("shown", "installs"),
    [(0, False), (1, False), (4, True)],
    ids=["there is a bundle", "it ends soon", "there is none"],
)
def test_a_bundle_is_installed_where_the_database_has_none(
    tmp_path: Path, shown: int, installs: bool
) -> None:
    """Whatever key files a run has left that broke off; `shown` is what `trust show` exits with."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    (script,) = re.findall(r"^ +pgfence migrate\n(?: {8}.*\n)+", text, re.MULTILINE)
    script = script.replace("$$", "$").replace("/keys/", f"{tmp_path}/")
    (tmp_path / "grant.key").touch()
    pgfence = tmp_path / "pgfence"
    pgfence.write_text(f'#!/bin/sh\necho $1 $2 >>"$0.calls"\n[ "$2" != show ] || exit {shown}\n')
    pgfence.chmod(0o755)
    ran = subprocess.run(
        ["sh", "-euc", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        timeout=PATIENCE,
    )
    assert ran.returncode == 0
    calls = (tmp_path / "pgfence.calls").read_text().splitlines()
    assert calls == ["migrate", "trust show", *["trust init"] * installs]
