"""Write docs/errors.md from the one table: python tools/errors_page.py"""

from pathlib import Path

from pgfence.model.verdict import CODES, Code

PAGE = Path(__file__).parent.parent / "docs" / "errors.md"

_HEAD = """\
# Verdicts and errors

This page is written by `tools/errors_page.py` from the table in `pgfence/model/verdict.py`.
`pgfence.error_codes()` gives names, SQLSTATEs and meanings in SQL. Rules are those of the contract.

`fenced_apply()` and `advance()` answer ACCEPTED, REPLAYED or ADVANCED, or one of the refusals. A
refusal changes nothing; commit after it, so that its evidence stays. Python's `lease.apply` does so
and raises the exception; `fence.apply` returns the verdict; `pgfence.require()` raises in SQL.
The exceptions are in `pgfence.errors`, and those that most callers catch in `pgfence` as well.
"""

_SECTIONS = (
    ("PF1", "Refusals", "Verdicts; SQLSTATE when `pgfence.require()` raises them."),
    ("PF2", "Errors of a write", "Raised by the guard, by `fenced_apply()` and at COMMIT."),
    ("PF3", "Errors of a call", "Raised by pgfence's functions for what they are asked."),
    (None, "Errors of the client", "Only the client can know these; they have no SQLSTATE."),
)


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(*section) for section in _SECTIONS)])


def _section(prefix: str | None, title: str, text: str) -> str:
    codes = [code for code in CODES.values() if (code.sqlstate or "")[:3] == (prefix or "")]
    head = [
        f"## {title}\n",
        f"{text}\n",
        "| name | SQLSTATE | exception | rule | meaning | what to do next |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(head + [_row(code) for code in codes]) + "\n"


def _row(code: Code) -> str:
    return (
        f"| `{code.name}` | {code.sqlstate or ''} | `{code.exception}` | {code.rule} "
        f"| {code.meaning} | {code.next_step} |"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
