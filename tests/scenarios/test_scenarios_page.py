"""docs/scenarios.md names the tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "scenarios.md"


def test_every_story_is_in_the_page_once_and_every_line_of_the_page_is_a_test() -> None:
    rows = re.findall(r"^\| \S+#\d+.* \| `(test_\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    stories = [
        name
        for module in HERE.glob("test_*.py")
        if module != Path(__file__)
        for name in re.findall(r"^(?:async )?def (test_\w+)", module.read_text(), re.MULTILINE)
    ]
    assert sorted(rows) == sorted(stories)
