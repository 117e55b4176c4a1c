"""pgfence restored"""

from typing import Annotated

import typer
from psycopg.rows import dict_row

from pgfence.cli.output import OWNER, Dsn, Json, Reason, console, database, print_json, reported


@reported
def restored(
    reason: Reason = "",
    above: Annotated[
        int,
        typer.Option(
            min=0,
            max=2**52,
            help="A fence token known from elsewhere that new ones must exceed too.",
        ),
    ] = 0,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Say that this database was put back to an earlier state: its grants end.

    As a member of pgfence_owner, before any worker logs in. For files that were copied back, a disk
    or a machine that was reset, which nothing in the database shows; harmless at any other time.
    Owners acquire again, with fence tokens above all that this database knows.
    """
    with database(dsn, OWNER) as conn:
        row = (
            conn.cursor(row_factory=dict_row)
            .execute("select * from pgfence.restored(%s, %s)", (reason, above))
            .fetchone()
        )
        assert row is not None  # noqa: S101 - the function answers one row
    if as_json:
        print_json(row)
        return
    out = console()
    out.print(f"grants below issuer epoch {row['issuer_epoch']} are refused from now on")
    out.print(f"new fence tokens lie above {row['fence_base']}")
