"""Freeze sql/ into migrations/frozen/, which is all that a revision ever runs.

    python tools/new_migration.py --baseline

rewrites the baseline from the files of sql/manifest.txt. That is right until the first release;
afterwards nothing that is frozen changes any more.

Every statement must parse (grammar of PostgreSQL 18), and so must the body of every function and
DO block. Drivers such as asyncpg run one statement at a time, and a revision must not depend on a
parser: so statements are split here, and stand in the frozen files between lines of their own.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from pglast import ast, parse_plpgsql, parse_sql

ROOT = Path(__file__).resolve().parent.parent
BASELINE = "0001_baseline"
SEPARATOR = "\n-- next statement\n"


class SourceError(Exception):
    """A file of sql/ cannot be frozen; the message says which and why."""


def split(text: str) -> list[str]:
    """The statements of an SQL text, each with the comment before it and without its semicolon."""
    statements = []
    start = 0
    for raw in parse_sql(text):
        first = raw.stmt_location or 0
        end = first + raw.stmt_len if raw.stmt_len else len(text)
        check_body(raw.stmt, text[first:end])
        statements.append(text[start:end].strip())
        start = end + 1  # past the semicolon
    return statements


# The parser has no catalog: in its eyes types stand in public or pg_catalog, if anywhere.
_UNKNOWN_TYPES = (
    (re.compile(r"[\w.]+%rowtype"), "record"),
    (re.compile(r"\bpgfence(_registry)?\.\w+\[\]"), "text[]"),
    (re.compile(r"\bpgfence(_registry)?\."), "public."),
)


def check_body(node: ast.Node | None, statement: str) -> None:
    """Parse the body of a function or DO block; PostgreSQL itself would do so at its first run."""
    for pattern, known in _UNKNOWN_TYPES:
        statement = pattern.sub(known, statement)
    if isinstance(node, ast.DoStmt):
        parse_plpgsql(statement)
    elif isinstance(node, ast.CreateFunctionStmt):
        options = {option.defname: option.arg for option in node.options or ()}
        if options["language"].sval == "plpgsql":
            parse_plpgsql(statement)
        elif options["language"].sval == "sql" and "as" in options:
            parse_sql(options["as"][0].sval)


def frozen_files(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Name and text of each file of the baseline, in load order."""
    sql = root / "sql"
    for line in (sql / "manifest.txt").read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        try:
            statements = split((sql / line).read_text(encoding="utf-8"))
        except Exception as error:
            raise SourceError(f"sql/{line}: {error}") from error
        if any(SEPARATOR.strip() in statement for statement in statements):
            raise SourceError(f"sql/{line}: has the line that separates statements")
        yield f"{BASELINE}/{line}", f"{SEPARATOR.join(f'{s};' for s in statements)}\n"


def main() -> None:
    """Rewrite the baseline and its checksums."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--baseline", action="store_true", required=True, help="rewrite the baseline from sql/"
    )
    parser.parse_args()
    files = list(frozen_files())  # all of it parses before anything is written
    migrations = ROOT / "migrations"
    shutil.rmtree(migrations / "frozen" / BASELINE, ignore_errors=True)
    lock = []
    for name, text in files:
        path = migrations / "frozen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        lock.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n")
    (migrations / "frozen.lock").write_text("".join(lock), encoding="utf-8")
    print(f"{len(files)} files frozen in migrations/frozen/{BASELINE}")


if __name__ == "__main__":
    main()
