"""Who may install pgfence, what a DBA may prepare, and what is refused with the way out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pgfence import install
from pgfence.errors import SchemaVersionError
from tests import support
from tests.workers import in_background


@pytest.fixture
def newcomer(empty_database: support.Database) -> Iterator[str]:
    """A login role that may create schemas in the empty database, and is in no group."""
    name = f"newcomer_{os.getpid()}"
    with empty_database.connect() as conn:
        names = {"role": sql.Identifier(name), "database": sql.Identifier(empty_database.name)}
        conn.execute(
            sql.SQL("create role {role} login password {password}").format(
                password=sql.Literal(support.ROLE_PASSWORD), **names
            )
        )
        conn.execute(sql.SQL("grant create on database {database} to {role}").format(**names))
    yield name
    with empty_database.connect() as conn:
        conn.execute(sql.SQL("drop owned by {role}").format(**names))
        conn.execute(sql.SQL("drop role {role}").format(**names))


def install_as(database: support.Database, role: str | None) -> None:
    """The whole installation as one text, in a transaction."""
    with database.connect(role, autocommit=False) as conn:
        conn.execute(install.manifest_sql())


def refused(database: support.Database, role: str | None) -> psycopg.errors.Diagnostic:
    """What a refused installation said; nothing of it is left."""
    with pytest.raises(psycopg.Error) as caught:
        install_as(database, role)
    return caught.value.diag


def as_the_hint_says(database: support.Database, said: psycopg.errors.Diagnostic) -> None:
    """Do, as superuser, what the hint tells a DBA to do."""
    assert said.message_hint is not None
    assert said.message_hint.startswith("A DBA may run: ")
    with database.connect() as conn:
        conn.execute(said.message_hint.removeprefix("A DBA may run: ").encode())


def version_of(conn: psycopg.Connection[Any]) -> int:
    return conn.info.server_version // 10000


def test_the_installer_needs_no_superuser(empty_database: support.Database) -> None:
    with empty_database.connect("dba") as conn:
        row = conn.execute("select rolsuper from pg_roles where rolname = current_user").fetchone()
    assert row == (False,)
    install_as(empty_database, "dba")


def test_a_superuser_may_install_it_too(empty_database: support.Database) -> None:
    install_as(empty_database, None)
    with empty_database.connect() as conn:
        row = conn.execute(
            "select count(*) from pg_proc where pronamespace = 'pgfence'::regnamespace"
            " and proowner <> 'pgfence_owner'::regrole"
        ).fetchone()
    assert row == (0,)


def test_who_is_no_member_of_the_owner_group_is_told_what_a_dba_must_run(
    template: support.Database, empty_database: support.Database, newcomer: str
) -> None:
    said = refused(empty_database, newcomer)
    assert said.message_primary == (
        f"role pgfence_owner exists, and {newcomer} is not a member of it"
    )
    as_the_hint_says(empty_database, said)
    install_as(empty_database, newcomer)


def test_a_schema_that_a_dba_made_needs_no_create_on_the_database(
    template: support.Database, empty_database: support.Database, newcomer: str
) -> None:
    with empty_database.connect() as conn:
        conn.execute(
            sql.SQL("revoke create on database {} from {}").format(
                sql.Identifier(empty_database.name), sql.Identifier(newcomer)
            )
        )
        conn.execute(
            sql.SQL("grant pgfence_owner to {} {}").format(
                sql.Identifier(newcomer),
                sql.SQL("with inherit true, set true" if version_of(conn) >= 16 else ""),
            )
        )
    for schema in install.SCHEMAS:
        said = refused(empty_database, newcomer)
        assert said.message_primary == (
            f"schema {schema} does not exist and {newcomer} may not create it"
        )
        as_the_hint_says(empty_database, said)
    install_as(empty_database, newcomer)


@pytest.mark.parametrize(
    ("prepared", "complaint"),
    [
        ("create schema pgfence", "does not belong to pgfence_owner"),
        (
            "create schema pgfence authorization pgfence_owner;"
            "grant create on schema pgfence to outsider",
            "others than its owner hold rights on it",
        ),
        (
            "create schema pgfence authorization pgfence_owner;"
            "create function pgfence._raise(text) returns void language sql as ''",
            "is not empty",
        ),
        (
            "create schema pgfence_registry authorization pgfence_owner;"
            "create table pgfence_registry.grants ()",
            "is not empty",
        ),
    ],
)
def test_a_schema_in_which_something_was_planted_is_refused(
    prepared: str, complaint: str, template: support.Database, empty_database: support.Database
) -> None:
    with empty_database.connect() as conn:
        conn.execute(prepared.encode())
    said = refused(empty_database, "dba")
    assert said.message_primary is not None
    assert complaint in said.message_primary
    assert said.message_hint


@pytest.mark.parametrize("attribute", ["login", "superuser", "bypassrls", "createrole"])
def test_a_group_that_is_more_than_a_group_is_refused(
    attribute: str, template: support.Database, empty_database: support.Database
) -> None:
    with empty_database.connect(autocommit=False) as conn:
        conn.execute(f"alter role pgfence_app {attribute}".encode())
        with pytest.raises(psycopg.Error, match="is not a plain NOLOGIN group") as caught:
            conn.execute(install.manifest_sql())
        conn.rollback()  # the role belongs to the whole cluster
        assert caught.value.diag.message_hint
        assert "alter role pgfence_app nologin" in caught.value.diag.message_hint


def test_outside_a_transaction_it_stops_before_anything_belongs_to_the_installer(
    empty_database: support.Database,
) -> None:
    with empty_database.connect("dba") as conn, pytest.raises(psycopg.Error, match="one trans"):
        for path in install.manifest_files():
            conn.execute(path.read_text(encoding="utf-8"))
    with empty_database.connect() as conn:
        row = conn.execute(
            "select count(*) from pg_class where relnamespace = 'pgfence'::regnamespace"
        ).fetchone()
    assert row == (0,)


def test_the_installer_gets_its_role_and_settings_back(empty_database: support.Database) -> None:
    shown = "select current_user, current_setting('lock_timeout'), current_setting('search_path')"
    with empty_database.connect(autocommit=False) as conn:
        conn.execute("set role dba; set lock_timeout = '7s'; set search_path = public")
        conn.commit()
        conn.execute(install.manifest_sql())
        assert conn.execute(shown).fetchone() == ("dba", "7s", "public")
        conn.commit()
        assert conn.execute(shown).fetchone() == ("dba", "7s", "public")


def test_two_migrations_at_once_install_once(empty_database: support.Database) -> None:
    """Also where a DBA has set REPEATABLE READ: a snapshot of before the wait shows no pgfence."""
    support.set_for_roles(empty_database, "default_transaction_isolation", "repeatable read")
    watcher = empty_database.watcher
    watcher.execute("select pg_advisory_lock(%s)", [install._MIGRATE_LOCK])
    migrations = [
        in_background(lambda: install.migrate(empty_database.dsn("dba"))) for _ in range(2)
    ]
    waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
    support.wait_until(lambda: watcher.execute(waiting).fetchone() == (2,), "both wait")
    watcher.execute("select pg_advisory_unlock(%s)", [install._MIGRATE_LOCK])
    found = [migration.result(support.PATIENCE).before for migration in migrations]
    assert sorted(found, key=str) == [install.head(), None]


def test_a_database_of_a_later_pgfence_is_left_alone(database: support.Database) -> None:
    with database.connect() as conn:
        conn.execute(
            "create or replace function pgfence.schema_version() returns text language sql"
            " as $$ select '9999_later' $$"
        )
    with pytest.raises(SchemaVersionError, match="9999_later.*upgrade the package"):
        install.migrate(database.dsn("dba"))


def test_who_may_not_use_pgfence_is_told_who_may_migrate(database: support.Database) -> None:
    with pytest.raises(SchemaVersionError, match="another member of pgfence_owner"):
        install.migrate(database.dsn("outsider"))


def test_a_failed_migration_leaves_nothing(empty_database: support.Database) -> None:
    with empty_database.connect() as conn:
        conn.execute("create schema pgfence_registry")
    with pytest.raises(psycopg.Error, match="pgfence_registry exists"):
        install.migrate(empty_database.dsn("dba"))
    with empty_database.connect() as conn:
        assert conn.execute("select to_regnamespace('pgfence')").fetchone() == (None,)
