"""Where pgfence's SQL is, and how it gets into a database.

The same schema comes in four ways, and a test proves that they leave the same database: the files
of sql/manifest.txt in one transaction, `alembic upgrade heads`, `migrate`, and `migrate_sql` piped
into psql. Each runs as a role that may become pgfence_owner; none needs a superuser.

`pgfence.schema_version()` alone says what is installed. `migrate` keeps no version table, so it
needs no schema to put one in, and carries on from an installation made in any other way.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import psycopg
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.pool import NullPool

from pgfence.errors import SchemaVersionError

SCHEMAS = ("pgfence", "pgfence_registry")
ALEMBIC_TABLE = "pgfence_alembic_version"  # where `alembic upgrade heads` notes the revision

_PACKAGE = Path(__file__).resolve().parent
_MIGRATE_LOCK = 8102643  # advisory lock: two migrations at once, and the second finds it done

_PSQL_HEAD = """\
\\set ON_ERROR_STOP on
select not exists (
    select from pg_catalog.pg_proc as p join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
    where n.nspname = 'pgfence' and p.proname = 'schema_version'
) as pgfence_is_absent \\gset
\\if :pgfence_is_absent
begin;
"""
_PSQL_TAIL = """\
commit;
\\echo 'pgfence is installed'
\\else
select pgfence.schema_version() as pgfence_version \\gset
\\echo 'already at' :pgfence_version', nothing to do'
\\endif
"""


@dataclass(frozen=True)
class Migration:
    """What `migrate` did. before: the version it found, None for a database without pgfence."""

    before: str | None
    after: str


def source_dir(name: str) -> Path:
    """The folder `sql` or `migrations`: in the package in a wheel, at the root of a checkout."""
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


def head() -> str:
    """The schema version that this package brings."""
    return _revisions(None)[-1].revision


def migrate(dsn: str) -> Migration:
    """Bring a database to `head()`, in one transaction; changes nothing if it is there already.

    Raises SchemaVersionError if the database stands at a version that this package does not know,
    or the role may not look. Errors of the database pass through as psycopg.Error.
    """
    # Whatever the role's default is: a snapshot of before the wait for the lock shows no pgfence.
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(dsn),
        poolclass=NullPool,
        isolation_level="READ COMMITTED",
    )
    try:
        with engine.begin() as connection:
            connection.execute(
                text("select pg_catalog.pg_advisory_xact_lock(:k)"), {"k": _MIGRATE_LOCK}
            )
            before = _installed(connection)
            with Operations.context(MigrationContext.configure(connection)):
                for revision in _revisions(before):
                    revision.module.upgrade()
    except DBAPIError as error:
        raise error.orig or error from None
    return Migration(before, head())


def migrate_sql() -> str:
    """A script for psql that installs `head()`; run a second time it does nothing."""
    out = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql", opts={"as_sql": True, "output_buffer": out}
    )
    with Operations.context(context):
        for revision in _revisions(None):
            revision.module.upgrade()
    return f"{_PSQL_HEAD}{out.getvalue()}{_PSQL_TAIL}"


def include_name(name: str | None, type_: str, parent_names: object) -> bool:
    """For an application's own Alembic environment: autogenerate leaves what is pgfence's alone.

    context.configure(…, include_name=pgfence.install.include_name)
    """
    if type_ == "schema":
        return name not in SCHEMAS
    return type_ != "table" or name != ALEMBIC_TABLE


def _revisions(installed: str | None) -> list[Script]:
    """The revisions to run, oldest first."""
    config = Config()
    config.set_main_option("script_location", str(source_dir("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    known = [*scripts.walk_revisions()][::-1]
    names = [revision.revision for revision in known]
    if installed is None:
        return known
    if installed not in names:
        raise SchemaVersionError(
            f"the database stands at {installed}, and this pgfence knows nothing after {names[-1]}:"
            " upgrade the package"
        )
    return known[names.index(installed) + 1 :]


def _installed(connection: Connection) -> str | None:
    """What `pgfence.schema_version()` says; None where there is no such function."""
    found = connection.scalar(
        text(
            "select count(*) from pg_catalog.pg_proc as p"
            " join pg_catalog.pg_namespace as n on n.oid = p.pronamespace"
            " where n.nspname = 'pgfence' and p.proname = 'schema_version'"
        )
    )
    if not found:
        return None
    try:
        return str(connection.scalar(text("select pgfence.schema_version()")))
    except ProgrammingError as error:
        raise SchemaVersionError(
            "pgfence is installed here, and this role may not use it; migrate as the role that"
            " installed it, or as another member of pgfence_owner"
        ) from error
