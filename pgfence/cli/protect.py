"""pgfence protect, unprotect, protected"""

from typing import Annotated

import typer

from pgfence.audit import guards
from pgfence.cli.output import (
    FOUND,
    Connection,
    Dsn,
    Json,
    console,
    database,
    print_json,
    print_table,
    reported,
)

_OWNER = "the table's owner, in pgfence_app"
_Table = Annotated[str, typer.Argument(help="The table, as in SQL: billing.invoices")]


@reported
def protect(
    table: _Table,
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
    with database(dsn, _OWNER) as conn:
        oid, name = _find(conn, table)
        conn.execute("select pgfence.protect(%s::oid, %s)", (oid, template))
    if as_json:
        print_json({"table": name, "template": template})
    else:
        console().print(f"{name} is protected: {template}", soft_wrap=True)


@reported
def unprotect(table: _Table, dsn: Dsn = "", as_json: Json = False) -> None:
    """Take the guard off a table. Who did it, and when, stands in pgfence.journal.

    As the table's owner, in pgfence_app, and not as a workload. Waits for open transactions that
    have written the table; nobody uses it meanwhile.
    """
    with database(dsn, _OWNER) as conn:
        oid, name = _find(conn, table)
        conn.execute("select pgfence.unprotect(%s::oid)", (oid,))
    if as_json:
        print_json({"table": name})
    else:
        console().print(f"{name} is not protected any more", soft_wrap=True)


@reported
def protected(dsn: Dsn = "", as_json: Json = False) -> None:
    """Show the protected tables, and whether their guards are whole.

    As a role in pgfence_auditor or pgfence_app. Exit code 1 says that a guard is not whole: until
    its owner has called protect again, nobody is admitted to the resources of that table.
    """
    with database(dsn, "a role in pgfence_auditor or pgfence_app") as conn:
        tables = guards.protected(conn)
    if as_json:
        print_json(tables)
    elif tables:
        rows = [
            [t.table, t.template, "; ".join(f"{g.relation} {g.problem}" for g in t.gaps) or "whole"]
            for t in tables
        ]
        print_table(console(), ["table", "template", "guard"], rows)
    else:
        console().print("no table is protected")
    if any(table.gaps for table in tables):
        raise typer.Exit(FOUND)


def _find(conn: Connection, table: str) -> tuple[int, str]:
    """OID and name of a table; of one that was dropped, its OID twice."""
    row = conn.execute(
        "select t.oid,"
        " coalesce(pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname),"
        " t.oid::text)"
        " from (select cast(%s as regclass)::oid as oid) as t"
        " left join (pg_class as c join pg_namespace as n on n.oid = c.relnamespace)"
        " on c.oid = t.oid",
        (table,),
    ).fetchone()
    assert row is not None  # noqa: S101 - one argument, one row
    return row[0], row[1]
