"""docs/doctor.md is the table of checks."""

from __future__ import annotations

from tools import doctor_page


def test_docs_doctor_md_is_the_table_of_checks() -> None:
    written = doctor_page.PAGE.read_text(encoding="utf-8")
    assert written == doctor_page.page(), "run: python tools/doctor_page.py"
