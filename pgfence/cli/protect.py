"""pgfence protect"""

from typing import Annotated

import typer

from pgfence.cli.output import Dsn, Json, console, database, print_json, reported


@reported
def protect(
    table: Annotated[str, typer.Argument(help="The table, as in SQL: billing.invoices")],
    template: Annotated[
        str, typer.Argument(help="The resource of a row: 'invoice-batch/{batch_date}'")
    ],
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Refuse every write to a table but those of a resource's admitted owner.

    As the table's owner, in pgfence_app. Again with the same template: the guard is mended, and
    given in full to partitions that came later.
    """
    with database(dsn, "the table's owner, in pgfence_app") as conn:
        row = conn.execute(
            "select format('%%I.%%I', n.nspname, c.relname), pgfence.protect(c.oid, %s)"
            " from pg_class as c join pg_namespace as n on n.oid = c.relnamespace"
            " where c.oid = cast(%s as regclass)",
            (template, table),
        ).fetchone()
        assert row is not None  # noqa: S101 - one table, one row
    if as_json:
        print_json({"table": row[0], "template": template})
    else:
        console().print(f"{row[0]} is protected: {template}", soft_wrap=True)
