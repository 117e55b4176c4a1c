"""pgfence registry elsewhere, here, place"""

from typing import Annotated

import typer

from pgfence.cli.output import OWNER, Dsn, Json, Reason, console, database, print_json, reported

Fence = Annotated[int, typer.Option(min=0, max=2**52, help="Fence tokens are minted above it.")]


@reported
def elsewhere(
    tolerance_ms: Annotated[
        int,
        typer.Option(min=0, max=10_000, help="How far the clocks of both servers may be apart."),
    ] = 500,
    reason: Reason = "",
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Let another database be the registry of this one; its status proofs count from now on.

    As a member of pgfence_owner. Leases of the registry here end. docs/registry.md says what there
    is to prepare. Again: sets the tolerance.
    """
    with database(dsn, OWNER) as conn:
        row = conn.execute(
            "select pgfence.use_registry_elsewhere(%s, %s), a.audience"
            " from pgfence.arrangement() as a",
            (tolerance_ms, reason),
        ).fetchone()
    assert row is not None  # noqa: S101 - the function answers one row
    above, audience = row
    if as_json:
        print_json({"audience": audience, "tolerance_ms": tolerance_ms, "above": above})
        return
    out = console()
    out.print(f"from now on proofs of a registry elsewhere count; clocks: {tolerance_ms} ms apart")
    out.print(f"in its database: pgfence registry place PREFIX {audience} --above {above}")


@reported
def here(
    above: Annotated[
        int, typer.Option(min=0, max=2**52, help="The highest fence token that the other issued.")
    ],
    reason: Reason = "",
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Let this database be its own registry again; grants of the other one are refused.

    As a member of pgfence_owner.
    """
    with database(dsn, OWNER) as conn:
        conn.execute("select pgfence.use_registry_here(%s, %s)", (above, reason))
    if as_json:
        print_json({"above": above})
    else:
        console().print(f"the registry is here again; fence tokens are minted above {above}")


@reported
def place(
    prefix: Annotated[str, typer.Argument(help="The beginning of resource IDs; '' for all.")],
    audience: Annotated[str, typer.Argument(help="Name of the database, as in its trust bundle.")],
    above: Fence = 0,
    reason: Reason = "",
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Say which database guards the resources of a prefix; in the registry's database.

    As a member of pgfence_owner. Grants from now on are for that one. The longest prefix decides,
    and what is not placed is guarded by the registry's own database.
    """
    with database(dsn, OWNER) as conn:
        conn.execute("select pgfence.place(%s, %s, %s, %s)", (prefix, audience, above, reason))
    if as_json:
        print_json({"prefix": prefix, "audience": audience, "above": above})
    else:
        console().print(f"{prefix or 'everything'} is guarded by {audience}")
