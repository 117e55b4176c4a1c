"""pgfence migrate"""

from typing import Annotated

import typer

from pgfence.cli.output import Dsn, Json, console, print_json, reported


@reported
def migrate(
    dsn: Dsn = "",
    sql: Annotated[
        bool, typer.Option("--sql", help="Print a script for psql instead, and connect to nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Install pgfence's schema in a database, or bring it up to date.

    As a role with CREATE on the database and CREATEROLE; a superuser is not needed. Where nothing
    is to do, nothing is done.
    """
    from pgfence import install  # Alembic takes a while to load: only who needs it waits

    if sql:
        text = install.migrate_sql()
        if as_json:
            print_json({"version": install.head(), "sql": text})
        else:
            print(text, end="")
        return
    done = install.migrate(dsn)
    if as_json:
        print_json(done)
    elif done.before == done.after:
        console().print(f"pgfence is at {done.after}: nothing to do")
    else:
        console().print(f"pgfence is at {done.after}; before: {done.before or 'not installed'}")
