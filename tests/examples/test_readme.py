"""examples/README.md names every example."""

from __future__ import annotations

import re

from tests.examples.conftest import EXAMPLES


def test_every_file_of_the_examples_is_named_and_there() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`([\w./]+)`", text) if "tests/" not in name}
    there = {path.name for path in EXAMPLES.iterdir() if not path.name.startswith(("__", "README"))}
    assert named == there
