"""What is frozen for the migrations is what sql/ says, and nobody has touched it since."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pgfence import install
from tests import support
from tools import new_migration

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"


def locked() -> dict[str, str]:
    lines = (MIGRATIONS / "frozen.lock").read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def test_the_baseline_is_frozen_from_the_present_sources() -> None:
    present = {
        name: hashlib.sha256(text.encode()).hexdigest()
        for name, text in new_migration.frozen_files()
    }
    assert list(present.items()) == list(locked().items()), (
        "sql/ has changed: run `python tools/new_migration.py --baseline`"
    )


def test_every_frozen_file_is_as_its_checksum_says() -> None:
    files = {
        path.relative_to(MIGRATIONS / "frozen").as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in (MIGRATIONS / "frozen").rglob("*.sql")
    }
    assert files == locked()


def test_every_sql_file_stands_in_the_manifest() -> None:
    sql = MIGRATIONS.parent / "sql"
    listed = install.manifest_files()
    assert len(listed) == len(set(listed))
    assert set(listed) == set(sql.rglob("*.sql"))


def test_the_sources_have_no_tabs() -> None:
    assert [path.name for path in install.manifest_files() if "\t" in path.read_text()] == []


def test_the_schema_version_is_the_head_of_the_migrations(database: support.Database) -> None:
    row = database.connect().execute("select pgfence.schema_version()").fetchone()
    assert row == (install.head(),)
    assert len(install.head()) <= 32  # Alembic's column is that wide


@pytest.mark.parametrize(
    "source",
    [
        "creat table t ();",
        "create function f() returns void language plpgsql as $$ begin retur; end $$;",
        "create function f() returns integer language sql as $$ selec 1 $$;",
        "do $$ begin if true then end $$;",
    ],
)
def test_a_source_that_does_not_parse_is_not_frozen(source: str, tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "manifest.txt").write_text("bad.sql\n")
    (tmp_path / "sql" / "bad.sql").write_text(source)
    with pytest.raises(new_migration.SourceError, match=r"sql/bad\.sql"):
        list(new_migration.frozen_files(tmp_path))


def test_statements_are_split_after_the_semicolon_that_ends_them() -> None:
    body = "create function f() returns text language sql as $$ select '…;' $$"
    assert new_migration.split(f"-- α;\n{body};\nselect 'ω;' ; -- end\n") == [
        f"-- α;\n{body}",
        "select 'ω;'",
    ]
