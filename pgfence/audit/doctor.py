"""Read the catalog for whatever weakens the fence (R23-R27), and say what mends it.

The checks stand in `pgfence.audit.checks`, one entry each. Reads only; needs pgfence_auditor.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import psycopg
from psycopg.rows import dict_row

from pgfence.audit.installation import installation

Connection = psycopg.Connection[Any]


class Severity(StrEnum):
    """How much a finding weakens the fence."""

    #: Somebody can get round the fence, or forge what it says.
    ERROR = "error"
    #: A line of defence is gone, an owner can be held up, or evidence gets lost.
    WARNING = "warning"
    #: Nothing is weaker for it; somebody should know.
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: a query for what must not be, and what to say and do about each row that it finds.

    `found`, `run_as`, `mend` and `step` are filled in with the columns of the row; what the query
    gives them has its SQL quotes already. A column that is a list of statements stands alone in its
    entry of `mend`.
    """

    code: str
    severity: Severity
    #: For docs/doctor.md: what it looks for, and why that matters.
    why: str
    #: Column `object` says which object it is.
    query: str
    found: str
    #: Complete statements, in order; () where no SQL mends it.
    mend: tuple[str, ...]
    #: Who runs them: "superuser", or the name of a role (a login in it, after SET ROLE if need be).
    run_as: str = "superuser"
    #: What else there is to do, or to think about.
    step: str = ""
    #: The first version of PostgreSQL that has what the query asks for.
    since: int = 14


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says of one object. sql: complete statements, to be run one by one."""

    code: str
    severity: Severity
    object: str
    reason: str
    sql: tuple[str, ...]
    run_as: str | None
    step: str | None


@dataclass(frozen=True, slots=True)
class Unseen:
    """A check that the role may not make."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, the worst first, and what could not be looked at."""

    checks: int
    findings: tuple[Finding, ...]
    unseen: tuple[Unseen, ...]

    @property
    def is_clean(self) -> bool:
        """Everything was seen, and nothing of it weakens the fence; notes do not count."""
        return not self.unseen and all(f.severity is Severity.NOTE for f in self.findings)

    def with_findings(self, more: Iterable[Finding]) -> "Report":
        """The same with more findings."""
        order = list(Severity)
        findings = sorted((*self.findings, *more), key=lambda f: order.index(f.severity))
        return replace(self, findings=tuple(findings))


def examine(conn: Connection, checks: Sequence[Check]) -> Report:
    """Make the checks, all on one snapshot, in a transaction that only reads."""
    findings: list[Finding] = []
    unseen: list[Unseen] = []
    made = [check for check in checks if conn.info.server_version >= check.since * 10_000]
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read, read only")
        conn.execute("set local search_path = pg_catalog, pg_temp")
        conn.execute(
            "select set_config('pgfence.installation', %s, true)",
            [json.dumps(asdict(installation()))],
        )
        for check in made:
            try:
                with conn.transaction():
                    findings += _make(conn, check)
            except psycopg.errors.InsufficientPrivilege as error:
                unseen.append(Unseen(check.code, str(error.diag.message_primary)))
    return Report(len(made), (), tuple(unseen)).with_findings(findings)


def _make(conn: Connection, check: Check) -> list[Finding]:
    rows = conn.cursor(row_factory=dict_row).execute(check.query.encode()).fetchall()
    return [_finding(check, row) for row in rows]


def _finding(check: Check, row: dict[str, Any]) -> Finding:
    sql: list[str] = []
    for template in check.mend:
        column = row.get(template[1:-1]) if template.startswith("{") else None
        if isinstance(column, list):
            sql += column
        else:
            sql.append(template.format(**row))
    sql = [statement for statement in sql if statement]
    return Finding(
        code=check.code,
        severity=check.severity,
        object=row["object"],
        reason=check.found.format(**row),
        sql=tuple(sql),
        run_as=check.run_as.format(**row) if sql else None,
        step=check.step.format(**row) or None,
    )
