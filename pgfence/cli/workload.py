"""pgfence workload add, list, remove"""

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
from pgfence.errors import InvalidArgumentError

app = typer.Typer(no_args_is_help=True, help="Which login role acts for which workload.")

_SystemUser = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD:IDENTITY",
        help="Only its sessions authenticated so: cert:CN=worker-7 (PostgreSQL 16 and later).",
    ),
]


@app.command()
@reported
def add(
    name: Annotated[str, typer.Argument(help="The workload: worker-settlement, a SPIFFE ID.")],
    role: Annotated[str | None, typer.Option(help="Its login role.")] = None,
    pattern: Annotated[
        str | None,
        typer.Option(help="All login roles whose names begin so, also later ones: 'settler-*'."),
    ] = None,
    system_user: _SystemUser = None,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Let a login role act for a workload. Saying the same again changes nothing."""
    if (role is None) is (pattern is None) or (system_user is not None and role is None):
        raise typer.BadParameter("give --role, with or without --system-user, or --pattern")
    with database(dsn, OWNER) as conn:
        if pattern is not None:
            conn.execute("select pgfence.add_workload_pattern(%s, %s)", (name, pattern))
        else:
            conn.execute("select pgfence.add_workload(%s, %s, %s)", (name, role, system_user))
    if as_json:
        print_json({"workload": name, "role": role, "pattern": pattern, "system_user": system_user})
        return
    what = f"every role {pattern} acts" if pattern else f"role {role}{_as(system_user)} acts"
    console().print(f"{what} for workload {name}", soft_wrap=True)


@app.command("list")
@reported
def list_(dsn: Dsn = "", as_json: Json = False) -> None:
    """Show all workloads and their roles."""
    with database(dsn, AUDITOR) as conn:
        rows = (
            conn.cursor(row_factory=dict_row)
            .execute(
                "select workload, case when not is_prefix then role_name end as role,"
                " case when is_prefix then role_name || '*' end as pattern,"
                " nullif(authenticated_as, '') as system_user, added_at, added_by"
                " from pgfence.workload_roles order by workload, role_name, authenticated_as"
            )
            .fetchall()
        )
    if as_json:
        print_json(rows)
    elif rows:
        print_table(console(), list(rows[0]), [list(row.values()) for row in rows])
    else:
        console().print("no login role acts for any workload")


@app.command()
@reported
def remove(
    role: Annotated[str | None, typer.Argument(help="The login role.")] = None,
    pattern: Annotated[str | None, typer.Option(help="Or a pattern that was added.")] = None,
    system_user: _SystemUser = None,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Take a login role out of its workload: its grants are refused from then on."""
    if (role is None) is (pattern is None) or (system_user is not None and role is None):
        raise typer.BadParameter("give a role, with or without --system-user, or --pattern")
    with database(dsn, OWNER) as conn:
        if pattern is not None:
            row = conn.execute("select pgfence.remove_workload_pattern(%s)", (pattern,)).fetchone()
        else:
            query = "select pgfence.remove_workload(%s, %s)"
            row = conn.execute(query, (role, system_user)).fetchone()
    what = f"pattern {pattern}" if pattern else f"role {role}{_as(system_user)}"
    if row != (True,):
        raise InvalidArgumentError(
            f"{what} acts for no workload", hint="`pgfence workload list` shows who does."
        )
    if as_json:
        print_json({"role": role, "pattern": pattern, "system_user": system_user})
    else:
        console().print(f"{what} acts for no workload any more", soft_wrap=True)


def _as(system_user: str | None) -> str:
    return f" authenticated as {system_user}" if system_user else ""
