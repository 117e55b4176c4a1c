"""docs/trust.md is true: its blocks run, in order, as three people and an installer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pgfence.model.bundle import TrustBundle, follow_chain
from tests.cli.conftest import Pgfence
from tests.cli.documents import ROOT, blocks, program
from tests.support import Database

PAGE = ROOT / "docs" / "trust.md"


@pytest.mark.timeout(600)
def test_the_page_goes_from_three_keys_through_rotation_and_emergency_to_renewal(
    empty_database: Database, tmp_path: Path, pgfence: Pgfence
) -> None:
    assert pgfence("migrate", on=empty_database).exit_code == 0
    script = "\n".join(["set -euo pipefail", *(b.text for b in blocks(PAGE) if b.language == "sh")])
    result = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ
        | {
            "PATH": f"{program(tmp_path / 'bin').parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PGFENCE_DSN": empty_database.dsn("dba"),
        },
        capture_output=True,
        text=True,
        timeout=590,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    said = result.stdout
    assert "bundle 1 asks for 2 of its root keys: signed by none" in said
    assert "next: pgfence trust install trust-1.json" in said
    assert "trust bundle 4 is in force, for audience billing" in said

    chain = (
        empty_database.connect("dba")
        .execute("select document, signatures from pgfence.trust_chain(1)")
        .fetchall()
    )
    bundles = [TrustBundle.parse(document) for document, _ in chain]
    assert [len(signatures) for _, signatures in chain] == [2, 2, 2, 2]
    assert follow_chain(bundles[0], chain[1:]) == bundles[3]
    assert [bundle.lowest_epoch for bundle in bundles] == [1, 1, 2, 2]
    assert [sum(k.purpose == "grant" for k in bundle.keys) for bundle in bundles] == [1, 2, 1, 1]
    assert {key.kid for key in bundles[0].roots} - {key.kid for key in bundles[1].roots}
