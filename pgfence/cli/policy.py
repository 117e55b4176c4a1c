"""pgfence policy list, set"""

from typing import Annotated

import typer
from psycopg.rows import dict_row

from pgfence.cli.output import (
    AUDITOR,
    OWNER,
    Dsn,
    Json,
    console,
    database,
    print_json,
    print_table,
    reported,
)
from pgfence.model.canonical import MAX_INTEGER

app = typer.Typer(no_args_is_help=True, help="What the resources of a prefix allow.")

_RULING = """
select operation_classes, largest_step, largest_ttl_ms from pgfence.policies
 where starts_with(%s, prefix) order by length(prefix) desc limit 1
"""


@app.command("list")
@reported
def list_(dsn: Dsn = "", as_json: Json = False) -> None:
    """Show all policies. The longest prefix of a resource decides; the empty one rules the rest."""
    with database(dsn, AUDITOR) as conn:
        rows = (
            conn.cursor(row_factory=dict_row)
            .execute(
                "select prefix, generation, operation_classes, largest_step, largest_ttl_ms"
                " from pgfence.policies order by prefix"
            )
            .fetchall()
        )
    if as_json:
        print_json(rows)
        return
    print_table(
        console(),
        ["prefix", "generation", "operations", "largest step", "largest ttl (s)"],
        [
            [
                r["prefix"], r["generation"],
                "any" if r["operation_classes"] is None else ", ".join(r["operation_classes"]),
                r["largest_step"], r["largest_ttl_ms"] / 1000,
            ]
            for r in rows
        ],
    )  # fmt: skip


@app.command("set")
@reported
def set_(
    prefix: Annotated[str, typer.Argument(help="The beginning of resource IDs; '' for all.")],
    operation: Annotated[
        list[str] | None, typer.Option(help="An allowed operation class; give it once for each.")
    ] = None,
    any_operation: Annotated[
        bool, typer.Option("--any-operation", help="Allow every operation class.")
    ] = False,
    largest_step: Annotated[
        int | None,
        typer.Option(help="Largest jump of the fence token.", show_default=False, max=MAX_INTEGER),
    ] = None,
    largest_ttl: Annotated[
        float | None,
        typer.Option(
            help="Longest lease, in seconds.", show_default=False, min=0, max=MAX_INTEGER / 1000
        ),
    ] = None,
    generation: Annotated[
        int | None,
        typer.Option(
            show_default=False,
            max=MAX_INTEGER,
            help="Number of the generation, the same where the registry is.",
        ),
    ] = None,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Begin a new generation of a prefix's policy: grants of the old one are refused.

    As a member of pgfence_owner. What is not given stays as it is, for a new prefix as the policy
    above it has it. Owners acquire again.
    """
    if operation and any_operation:
        raise typer.BadParameter("--operation and --any-operation exclude each other")
    with database(dsn, OWNER) as conn:
        ruling = conn.cursor(row_factory=dict_row).execute(_RULING, (prefix,)).fetchone() or {}
        policy = {
            "operation_classes": None
            if any_operation
            else operation or ruling["operation_classes"],
            "largest_step": ruling["largest_step"] if largest_step is None else largest_step,
            "largest_ttl_ms": (
                ruling["largest_ttl_ms"] if largest_ttl is None else round(largest_ttl * 1000)
            ),
        }
        row = conn.execute(
            "select pgfence.set_policy(%s, %s::text[], %s::bigint, %s::bigint, %s::bigint)",
            (prefix, *policy.values(), generation),
        ).fetchone()
        assert row is not None  # noqa: S101 - the function answers one row
    if as_json:
        print_json({"prefix": prefix, "generation": row[0], **policy})
    else:
        console().print(
            f"policy of {prefix or 'all resources'}: generation {row[0]}; owners acquire again"
        )
