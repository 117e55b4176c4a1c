"""The command line. One module a command; docs/cli.md is its manual."""

import typer

from pgfence.cli import (
    demo,
    doctor,
    keys,
    migrate,
    policy,
    protect,
    receipts,
    reconcile,
    refusals,
    registry,
    restored,
    resume,
    rollout,
    run,
    status,
    trust,
    workload,
)

app = typer.Typer(
    name="pgfence",
    help="Fencing tokens enforced inside PostgreSQL: a stale lock owner cannot write.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(migrate.migrate)
app.add_typer(keys.app, name="keys")
app.add_typer(trust.app, name="trust")
app.add_typer(registry.app, name="registry")
app.add_typer(workload.app, name="workload")
app.add_typer(policy.app, name="policy")
app.add_typer(rollout.app, name="rollout")
app.command(context_settings={"allow_interspersed_args": False})(run.run)
app.command()(status.status)
app.command()(protect.protect)
app.command()(protect.unprotect)
app.command()(protect.protected)
app.command()(receipts.receipts)
app.command()(refusals.refusals)
app.command()(reconcile.reconcile)
app.command()(reconcile.answer)
app.command()(doctor.doctor)
app.command()(resume.resume)
app.command()(restored.restored)


def main() -> None:
    """The program `pgfence`."""
    app()
