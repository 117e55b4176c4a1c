"""pgfence doctor"""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pgfence.cli.output import AUDITOR, FOUND, Dsn, Json, console, database, print_json, reported

if TYPE_CHECKING:
    from pgfence.audit.doctor import Finding


@reported
def doctor(
    registry: Annotated[
        str, typer.Option(help="Connection string of the registry's database, to compare with.")
    ] = "",
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Look for whatever weakens the fence, and say what mends it. Changes nothing.

    As a role in pgfence_auditor. With --registry it also looks whether grants and proofs of that
    registry count here, and how far the clocks are apart (docs/registry.md). Exit code 1 says that
    something weakens it, or that this role may not look at everything; notes alone leave it 0.
    docs/doctor.md lists what is looked for.
    """
    from pgfence.audit import (
        checks,  # needs Alembic, which takes a while to load
        elsewhere,
    )
    from pgfence.audit import doctor as audit

    with database(dsn, AUDITOR) as conn:
        report = audit.examine(conn, checks.CHECKS)
        if registry:
            with database(registry, AUDITOR) as there:
                report = report.with_findings(elsewhere.compare(conn, there))
    if as_json:
        print_json(report)
    else:
        out = console()
        for finding in report.findings:
            _show(out, finding)
        for unseen in report.unseen:
            out.print(f"not seen  {unseen.code}: {unseen.reason}", soft_wrap=True)
        if report.unseen:
            out.print("A role in pgfence_auditor sees everything.")
        count = len(report.findings) or "nothing"
        out.print(f"{count} found, {report.checks - len(report.unseen)} checks made")
    if not report.is_clean:
        raise typer.Exit(FOUND)


def _show(out: Console, finding: "Finding") -> None:
    style = {"error": "bold red", "warning": "yellow"}.get(finding.severity)
    out.print(
        f"{finding.severity:<8}  {finding.code}  {finding.object}", style=style, soft_wrap=True
    )
    out.print(f"  {finding.reason}", soft_wrap=True)
    if finding.sql:
        who = "a superuser" if finding.run_as == "superuser" else f"role {finding.run_as}"
        out.print(f"  mend it as {who}:", soft_wrap=True)
        for statement in finding.sql:
            out.print("    " + statement.replace("\n", "\n    "), soft_wrap=True)
    if finding.step:
        out.print(f"  {finding.step}", soft_wrap=True)
    out.print()
