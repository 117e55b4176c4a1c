"""pgfence resume"""

from typing import Annotated

import typer

from pgfence.cli.output import OWNER, Dsn, Json, Reason, console, database, print_json, reported
from pgfence.model.canonical import MAX_INTEGER


@reported
def resume(
    resource: Annotated[str, typer.Argument(help="The paused resource.")],
    reason: Reason = "",
    above: Annotated[
        int,
        typer.Option(min=0, max=MAX_INTEGER, help="A fence token that is known from elsewhere."),
    ] = 0,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Let a paused resource go on, above every fence token of before.

    As a member of pgfence_owner, when you know why it was paused. Its lease ends; owners acquire
    again. The next fence token lies above every one that was ever issued here and above --above:
    nothing goes down. Who did it, when and why is kept.
    """
    with database(dsn, OWNER) as conn:
        row = conn.execute(
            "select paused_because, above from pgfence.resume(%s, %s, %s)",
            (resource, reason, above),
        ).fetchone()
        assert row is not None  # noqa: S101 - the function answers one row
    if as_json:
        print_json({"resource": resource, "paused_because": row[0], "above": row[1]})
        return
    out = console()
    out.print(f"{resource} goes on; it was paused: {row[0]}", soft_wrap=True)
    out.print(f"its next fence token lies above {row[1]}", soft_wrap=True)
