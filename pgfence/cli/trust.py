"""pgfence trust init"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pgfence import tokens
from pgfence.cli.output import Dsn, Json, console, database, print_json, reported
from pgfence.errors import TrustRefusedError
from pgfence.model.canonical import is_identifier
from pgfence.trust import TrustKeys, install_first_bundle, installed_version

app = typer.Typer(no_args_is_help=True, help="Which keys the guard accepts.")


@app.callback()
def _group() -> None:
    """Which keys the guard accepts."""


@app.command()
@reported
def init(
    audience: Annotated[
        str | None,
        typer.Option(
            show_default="the database's name",
            help="The name under which grants are issued for this database.",
        ),
    ] = None,
    root_key: Annotated[Path, typer.Option(help="Signs trust bundles. Keep it offline.")] = Path(
        "root.key"
    ),
    grant_key: Annotated[
        Path, typer.Option(help="Signs grants. The registry process needs it.")
    ] = Path("grant.key"),
    status_key: Annotated[
        Path, typer.Option(help="Signs status proofs. Keep it until a registry elsewhere needs it.")
    ] = Path("status.key"),
    days: Annotated[
        int, typer.Option(min=1, max=36500, help="How long the bundle and its keys are valid.")
    ] = 3650,
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Install the first trust bundle, and make the key files that are not there yet.

    As a member of pgfence_owner, which the role that ran `pgfence migrate` is. Existing key files
    are used as they are.
    """
    paths = {"root": root_key, "grant": grant_key, "status": status_key}
    if len({path.resolve() for path in paths.values()}) < len(paths):
        raise typer.BadParameter("a key has one purpose: give three different files")
    with database(dsn, "a member of pgfence_owner") as conn:
        audience = audience or conn.info.dbname
        if not is_identifier(audience):
            raise typer.BadParameter(
                f"the audience {audience!r} is not an ID", param_hint="--audience"
            )
        version = installed_version(conn)
        if version is not None:
            raise TrustRefusedError(
                f"database {conn.info.dbname} has trust bundle {version}: nothing was changed",
                hint="Use its keys. A database has one first bundle.",
            )
        made = [path for path in paths.values() if not path.exists()]
        keys = TrustKeys(**{purpose: _key(path, path in made) for purpose, path in paths.items()})
        bundle = install_first_bundle(conn, audience, keys, days)
    kids = {key.purpose: key.kid for key in bundle.keys}
    if as_json:
        print_json(
            {
                "version": bundle.version,
                "audience": bundle.audience,
                "digest": bundle.digest,
                "expires_at": datetime.fromtimestamp(bundle.expires_at / 1_000_000, UTC),
                "keys": {
                    purpose: {"kid": kids[purpose], "path": path, "made": path in made}
                    for purpose, path in paths.items()
                },
            }
        )
        return
    out = console()
    out.print(f"trust bundle 1 is installed, for audience {bundle.audience}", soft_wrap=True)
    out.print(f"its SHA-256 is {bundle.digest}", soft_wrap=True)
    for purpose, path in paths.items():
        what = "made" if path in made else "was there"
        out.print(f"{purpose:>7}: {path} ({what}), kid {kids[purpose]}", soft_wrap=True)
    out.print(
        f"{grant_key} belongs to the registry process and to nobody else.\n"
        f"Take {root_key} and {status_key} off this machine, to a place that is not online, and "
        "keep a copy: without the root key no other bundle can follow this one.",
        soft_wrap=True,
    )


def _key(path: Path, make: bool) -> Ed25519PrivateKey:
    if make:
        tokens.write_key(path, Ed25519PrivateKey.generate())
    return tokens.load_key(path)
