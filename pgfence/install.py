"""Where pgfence's SQL is, and how it gets into a database.

The same schema comes in four ways, and a test proves that they leave the same database: the files
of sql/manifest.txt in one transaction, `alembic upgrade heads`, `migrate`, and `migrate_sql` piped
into psql. Each must run as a role that may become pgfence_owner; none needs a superuser.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def source_dir(name: str) -> Path:
    """The folder `sql` or `migrations`: inside the package in a wheel, at the root of a checkout."""
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def manifest_files() -> list[Path]:
    """The files of the present schema, in load order."""
    sql = source_dir("sql")
    lines = (sql / "manifest.txt").read_text(encoding="utf-8").splitlines()
    return [sql / line.strip() for line in lines if line.strip() and not line.startswith("#")]


def manifest_sql() -> str:
    """The present schema as one text, to be run in one transaction."""
    return "\n".join(path.read_text(encoding="utf-8") for path in manifest_files())
