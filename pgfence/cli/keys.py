"""pgfence keys new, public"""

from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pgfence import tokens
from pgfence.cli.output import Json, console, print_json, reported
from pgfence.model.signature import key_id, raw_public_key

app = typer.Typer(no_args_is_help=True, help="Ed25519 key files.")


@app.callback()
def _group() -> None:
    """Ed25519 key files."""


@app.command()
@reported
def new(
    path: Annotated[Path, typer.Argument(help="The new file; never one that exists.")],
    as_json: Json = False,
) -> None:
    """Make a private key, in a file that only you may read."""
    key = Ed25519PrivateKey.generate()
    tokens.write_key(path, key)
    if as_json:
        print_json(_document(path, key))
    else:
        console().print(f"{path}: new key, kid {key_id(raw_public_key(key))}", soft_wrap=True)


@app.command()
@reported
def public(
    path: Annotated[Path, typer.Argument(help="The file of a private key.")],
    as_json: Json = False,
) -> None:
    """Print the public key of a key file: what you give to others."""
    key = tokens.load_key(path)
    if as_json:
        print_json(_document(path, key))
    else:
        print(raw_public_key(key).hex())


def _document(path: Path, key: Ed25519PrivateKey) -> dict[str, object]:
    public_key = raw_public_key(key)
    return {"path": path, "kid": key_id(public_key), "public_key": public_key.hex()}
