"""Whether every test of this folder is run in both arrangements."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_r13_every_test_is_also_run_with_the_registry_in_another_database() -> None:
    """No module leaves it out. What is otherwise there, the test itself says: `route`."""
    folder = Path(__file__).parent
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", folder],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    collected = [line.partition("[") for line in listed.splitlines() if "::" in line]
    tests = {test for test, _, ways in collected if ways}
    elsewhere = {test for test, _, ways in collected if "elsewhere" in ways}
    assert len(tests) > 100
    assert tests - elsewhere == set()
