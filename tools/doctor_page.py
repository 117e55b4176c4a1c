"""Write docs/doctor.md from the table of checks: python tools/doctor_page.py"""

from pathlib import Path

from pgfence.audit.checks import CHECKS
from pgfence.audit.doctor import Check, Severity

PAGE = Path(__file__).parent.parent / "docs" / "doctor.md"

_HEAD = """\
# What doctor looks for

This page is written by `tools/doctor_page.py` from the table in `pgfence/audit/checks.py`.

`pgfence doctor` reads the catalog, changes nothing, and names whatever weakens the fence: a code
that stays the same from version to version, a severity, the object, the reason, and the SQL that
mends it, complete and quoted, with the role that runs it. Run it as a role in `pgfence_auditor`:
after installing, after every change of roles or tables, after a restore, and in CI.

| exit code | meaning |
|---|---|
| 0 | nothing weakens the fence; there may be notes |
| 1 | an error or a warning was found, or the role may not look at everything (`not seen`) |

*Application roles* are the login roles of workloads and those in `pgfence_registry`. What they can
reach counts like what they have: by inheriting, by SET ROLE, or by an ADMIN option with which they
could grant it to themselves, over any number of roles in between.

Out of sight are `pg_hba.conf` and passwords, views and constraints of pgfence that a member of
`pgfence_owner` has replaced, and what the operating system lets people do ([limits](limits.md)).

`pgfence doctor --registry DSN` also compares the database with a registry elsewhere:
`CLOCKS_APART`, `NOT_PLACED`, `KEY_NOT_TRUSTED` and `POLICY_DIFFERS` ([registry](registry.md)).
"""

_SECTIONS = (
    (Severity.ERROR, "Errors", "Somebody can get round the fence, or forge what it says."),
    (
        Severity.WARNING,
        "Warnings",
        "A line of defence is gone, an owner can be held up, or evidence gets lost.",
    ),
    (Severity.NOTE, "Notes", "Nothing is weaker for it; somebody should know."),
)


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(*section) for section in _SECTIONS)])


def _section(severity: Severity, title: str, text: str) -> str:
    head = [
        f"## {title}\n",
        f"{text}\n",
        "| code | what it looks for, and why | mended by |",
        "|---|---|---|",
    ]
    return "\n".join(head + [_row(c) for c in CHECKS if c.severity is severity]) + "\n"


def _row(check: Check) -> str:
    since = f" (PostgreSQL {check.since} and later)" if check.since > 14 else ""
    return f"| `{check.code}` | {check.why}{since} | {_by(check)} |"


def _by(check: Check) -> str:
    if not check.mend:
        return "a person"
    return {
        "superuser": "SQL, as a superuser",
        "pgfence_owner": "SQL, as a member of `pgfence_owner`",
        "{owner}": "SQL, as the table's owner",
    }[check.run_as]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
