"""However pgfence gets into a database, it is the same: objects, owners, rights and comments."""

from __future__ import annotations

import asyncio
import difflib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import psycopg
import pytest

from pgfence import embedded, install
from tests import support
from tools import new_migration

ROOT = Path(__file__).resolve().parents[2]
NOTES = "notes_of_dba"  # where the installer keeps Alembic's version table


def program(name: str) -> Path:
    """psql or pg_dump of the wheel; they talk to every older server too."""
    try:
        return embedded.wheel_bin_dir() / name
    except embedded.EmbeddedServerError as error:
        support.unavailable(str(error))


def dump(database: support.Database) -> str:
    """The schema as pg_dump writes it, without Alembic's table and the random \\restrict lines."""
    result = subprocess.run(
        [program("pg_dump"), "--schema-only", f"--exclude-schema={NOTES}", database.dsn()],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = result.stdout.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("\\restrict", "\\unrestrict")))


def assert_same(expected: str, found: str) -> None:
    """Fail with the lines that differ."""
    difference = difflib.unified_diff(expected.splitlines(), found.splitlines(), lineterm="", n=2)
    assert expected == found, "\n".join(difference)


def alembic(database: support.Database, *arguments: str) -> str:
    """Run Alembic in the checkout as `dba`, who may make no tables in public."""
    with database.connect() as conn:
        conn.execute(f"create schema if not exists {NOTES} authorization dba")
    environment = os.environ | {
        "PGFENCE_DSN": database.dsn("dba"),
        "PGOPTIONS": f"-c search_path={NOTES}",
    }
    result = subprocess.run(
        [sys.executable, "-m", "alembic", "-c", ROOT / "alembic.ini", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def psql(database: support.Database, script: str) -> str:
    """Pipe a script into psql as `dba`."""
    result = subprocess.run(
        [program("psql"), "--no-psqlrc", "--quiet", database.dsn("dba")],
        env=os.environ | {"PGOPTIONS": f"-c search_path={NOTES},public"},
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "ERROR" not in result.stderr, result.stderr
    return result.stdout


def by_alembic(database: support.Database) -> None:
    alembic(database, "upgrade", "heads")


def by_alembic_sql(database: support.Database) -> None:
    psql(database, alembic(database, "upgrade", "heads", "--sql"))


def by_migrate(database: support.Database) -> None:
    install.migrate(database.dsn("dba"))


def by_psql(database: support.Database) -> None:
    psql(database, install.migrate_sql())


def by_manifest_text(database: support.Database) -> None:
    with psycopg.connect(database.dsn("dba")) as conn:
        conn.execute(install.manifest_sql())


def by_asyncpg(database: support.Database) -> None:
    async def run() -> None:
        conn = await asyncpg.connect(database.dsn("dba"))
        try:
            async with conn.transaction():
                for path in install.manifest_files():
                    for statement in new_migration.split(path.read_text(encoding="utf-8")):
                        await (await conn.prepare(statement)).fetch()
        finally:
            await conn.close()

    asyncio.run(run())


@contextmanager
def another_database(cluster: support.TestServer, name: str) -> Iterator[support.Database]:
    database = support.create_database(cluster, f"{name}_{os.getpid()}")
    try:
        yield database
    finally:
        database.drop()


@pytest.fixture(scope="module")
def reference(cluster: support.TestServer) -> str:
    """The dump of what the manifest, file by file, installs."""
    with another_database(cluster, "pgfence_reference") as database:
        support.install_from_manifest(database)
        return dump(database)


WAYS = [by_alembic, by_alembic_sql, by_migrate, by_psql, by_manifest_text, by_asyncpg]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_installing_leaves_the_same_database(
    way: Callable[[support.Database], None], empty_database: support.Database, reference: str
) -> None:
    way(empty_database)
    assert_same(reference, dump(empty_database))


def test_the_dump_shows_owners_rights_and_comments(reference: str) -> None:
    assert "ALTER SCHEMA pgfence OWNER TO pgfence_owner;" in reference
    assert "REVOKE ALL ON FUNCTION pgfence.schema_version() FROM PUBLIC;" in reference
    assert "COMMENT ON FUNCTION pgfence.schema_version()" in reference


def test_a_difference_in_one_comment_is_seen(
    empty_database: support.Database, reference: str
) -> None:
    support.install_from_manifest(empty_database)
    with empty_database.connect() as conn:
        conn.execute("comment on function pgfence.schema_version() is 'changed'")
    with pytest.raises(AssertionError, match="changed"):
        assert_same(reference, dump(empty_database))


@pytest.mark.parametrize("first", [by_alembic, by_migrate, by_psql, by_manifest_text])
@pytest.mark.parametrize("second", [by_alembic, by_migrate, by_psql])
def test_a_second_installation_in_any_way_does_nothing(
    first: Callable[[support.Database], None],
    second: Callable[[support.Database], None],
    empty_database: support.Database,
) -> None:
    first(empty_database)
    with empty_database.connect() as conn:
        before = conn.execute("select oid, xmin from pg_proc order by oid").fetchall()
        second(empty_database)
        assert conn.execute("select oid, xmin from pg_proc order by oid").fetchall() == before


def test_migrate_says_where_the_database_stood_and_stands(
    empty_database: support.Database,
) -> None:
    head = install.head()
    assert install.migrate(empty_database.dsn("dba")) == install.Migration(None, head)
    assert install.migrate(empty_database.dsn("dba")) == install.Migration(head, head)
    assert f"already at {head}, nothing to do" in psql(empty_database, install.migrate_sql())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout and unpacked as pip would."""
    folder = tmp_path_factory.mktemp("wheel")
    result = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "site-packages")
    return folder / "site-packages"


def run_in_wheel(wheel: Path, code: str) -> str:
    """Run Python code outside the checkout, with pgfence from the wheel."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=wheel.parent,
        env=os.environ | {"PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_wheel_brings_the_same_schema_as_the_checkout(
    wheel: Path, empty_database: support.Database, reference: str
) -> None:
    code = "import pgfence.install as i; print(i.__file__); i.migrate({!r})"
    where = run_in_wheel(wheel, code.format(empty_database.dsn("dba")))
    assert Path(where.strip()).is_relative_to(wheel)
    assert_same(reference, dump(empty_database))


def test_the_wheel_prints_the_same_scripts_as_the_checkout(wheel: Path) -> None:
    code = "import sys, pgfence.install as i; sys.stdout.write(i.{}())"
    assert run_in_wheel(wheel, code.format("migrate_sql")) == install.migrate_sql()
    assert run_in_wheel(wheel, code.format("manifest_sql")) == install.manifest_sql()


def test_an_application_runs_the_branch_in_its_own_alembic_environment(
    wheel: Path, empty_database: support.Database, reference: str, tmp_path: Path
) -> None:
    with empty_database.connect() as conn:
        conn.execute(f"create schema {NOTES} authorization dba")
    (tmp_path / "env.py").write_text(
        "import psycopg\n"
        "from alembic import context\n"
        "from sqlalchemy import create_engine\n"
        f"dsn = {empty_database.dsn('dba')!r}\n"
        "engine = create_engine('postgresql+psycopg://', creator=lambda: psycopg.connect(dsn))\n"
        "with engine.connect() as connection:\n"
        f"    context.configure(connection=connection, version_table_schema={NOTES!r})\n"
        "    with context.begin_transaction():\n"
        "        context.run_migrations()\n"
    )
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "app.py").write_text(
        "from alembic import op\n"
        "revision = 'app1'\n"
        "down_revision = None\n"
        "depends_on = '0001_baseline'\n"
        f"def upgrade(): op.execute('create table {NOTES}.invoices (id bigint)')\n"
    )
    (tmp_path / "alembic.ini").write_text(
        "[alembic]\n"
        f"script_location = {tmp_path}\n"
        "path_separator = newline\n"
        f"version_locations = {tmp_path}/versions\n  pgfence:migrations/versions\n"
    )
    run_in_wheel(
        wheel,
        "from alembic.config import main;"
        f"main(['-c', {str(tmp_path / 'alembic.ini')!r}, 'upgrade', 'heads'])",
    )
    assert_same(reference, dump(empty_database))


def test_autogenerate_leaves_pgfence_alone() -> None:
    assert not install.include_name("pgfence", "schema", {})
    assert not install.include_name("pgfence_registry", "schema", {})
    assert not install.include_name(install.ALEMBIC_TABLE, "table", {"schema_name": None})
    assert install.include_name(None, "schema", {})
    assert install.include_name("invoices", "table", {"schema_name": None})
