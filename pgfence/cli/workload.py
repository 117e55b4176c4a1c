"""pgfence workload add, list, remove"""

from typing import Annotated

import typer
from psycopg.rows import dict_row

from pgfence.cli.output import Dsn, Json, console, database, print_json, print_table, reported
from pgfence.errors import InvalidArgumentError

app = typer.Typer(no_args_is_help=True, help="Which login role acts for which workload.")
_OWNER = "a member of pgfence_owner"


@app.command()
@reported
def add(
    name: Annotated[str, typer.Argument(help="The workload: worker-settlement, a SPIFFE ID.")],
    role: Annotated[str, typer.Option(help="Its login role.")],
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Let a login role act for a workload. Saying the same again changes nothing."""
    with database(dsn, _OWNER) as conn:
        conn.execute("select pgfence.add_workload(%s, %s)", (name, role))
    if as_json:
        print_json({"workload": name, "role": role})
    else:
        console().print(f"role {role} acts for workload {name}", soft_wrap=True)


@app.command("list")
@reported
def list_(dsn: Dsn = "", as_json: Json = False) -> None:
    """Show all workloads and their roles."""
    with database(dsn, "a role in pgfence_auditor") as conn:
        rows = (
            conn.cursor(row_factory=dict_row)
            .execute(
                "select workload, role_name as role, added_at, added_by from pgfence.workload_roles"
                " order by workload, role_name"
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
    role: Annotated[str, typer.Argument(help="The login role.")],
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Take a login role out of its workload: its grants are refused from then on."""
    with database(dsn, _OWNER) as conn:
        row = conn.execute("select pgfence.remove_workload(%s)", (role,)).fetchone()
    if row != (True,):
        raise InvalidArgumentError(
            f"role {role} acts for no workload", hint="`pgfence workload list` shows who does."
        )
    if as_json:
        print_json({"role": role})
    else:
        console().print(f"role {role} acts for no workload any more", soft_wrap=True)
