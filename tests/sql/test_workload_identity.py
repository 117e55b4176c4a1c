"""Which login is which workload: roles, patterns of roles, and SYSTEM_USER (R6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.support import PATIENCE, ROLE_PASSWORD, Database, Keys, wait_until_blocked
from tests.workers import Worker, as_owner, fence_row, in_background

RESOURCE = "invoice-batch/2026-07-19"
ADD = "select pgfence.add_workload(%s, %s, %s)"
PATTERN = "select pgfence.add_workload_pattern(%s, %s)"
Login = Callable[..., Worker]


@pytest.fixture
def dba(database: Database) -> psycopg.Connection[Any]:
    return database.connect("dba")


@pytest.fixture
def login(database: Database, keys: Keys) -> Iterator[Login]:
    """Log in as a role, which is made with the rights of an application if there is none."""
    superuser = database.connect()
    made: list[str] = []

    def log_in(role: str, **parameters: Any) -> Worker:
        found = superuser.execute("select from pg_roles where rolname = %s", [role]).fetchone()
        if found is None:
            create = sql.SQL("create role {} login password {} in role pgfence_app")
            superuser.execute(create.format(sql.Identifier(role), sql.Literal(ROLE_PASSWORD)))
            made.append(role)
        return Worker.login(database, keys, role, **parameters)

    yield log_in
    database.close()
    with psycopg.connect(database.dsn(), autocommit=True) as conn:
        for (role,) in conn.execute(
            "select r.rolname from pg_roles as r where r.rolname = any (%s)"
            " or r.rolname like 'renamed%%'",
            [made],
        ).fetchall():
            conn.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def refused(call: Callable[[], object]) -> str | None:
    with pytest.raises(psycopg.Error) as error:
        call()
    return error.value.sqlstate


def test_r6_every_role_of_a_pattern_acts_for_its_workload_also_one_that_comes_later(
    dba: psycopg.Connection[Any], login: Login
) -> None:
    first = login("settler_1")
    assert refused(lambda: first.ask(RESOURCE)) == "PF302"
    dba.execute(PATTERN, ["settlement", "settler_*"])
    held = first.acquire(RESOURCE)
    for segment in (1, 2):
        assert first.apply(held.token, segment).verdict == "ACCEPTED"
    # instances of one service share its grants
    assert login("settler_2").apply(held.token, 3).verdict == "ACCEPTED"
    dba.execute("select pgfence.remove_workload_pattern('settler_*')")
    assert first.apply(held.token, 4).verdict == "NOT_OWNER"


@pytest.mark.parametrize(
    "role",
    ["settlerX1", "Settler_1", "SETTLER_1", "settler_", "settler", " settler_1", "a_settler_1",
     "settler%1", "settler\\_1", "settler-1", "settler*"],
)  # fmt: skip
def test_r6_role_that_only_resembles_a_pattern_is_nobody(
    dba: psycopg.Connection[Any], login: Login, role: str
) -> None:
    dba.execute(PATTERN, ["settlement", "settler_*"])
    worker = login(role)
    assert refused(lambda: worker.ask(RESOURCE)) == "PF302"
    # control: the very session is let in once its role is named
    dba.execute("select pgfence.remove_workload_pattern('settler_*')")
    dba.execute(ADD, ["another", role, None])
    assert worker.ask(RESOURCE).state == "SIGNING"


def test_r6_control_a_like_or_regular_expression_would_let_lookalikes_in(
    dba: psycopg.Connection[Any],
) -> None:
    row = dba.execute("select 'settlerX1' like 'settler_%', 'Settler_1' ~* '^settler_'").fetchone()
    assert row == (True, True)


@pytest.mark.parametrize(
    "pattern",
    ["*", "ab*", "settler", "settler_%", "*settler", "set*tler*", "settler**", "", None,
     "x" * 63 + "*"],
)  # fmt: skip
def test_r6_what_could_be_misread_is_no_pattern(
    dba: psycopg.Connection[Any], pattern: str | None
) -> None:
    assert refused(lambda: dba.execute(PATTERN, ["settlement", pattern])) == "PF301"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((PATTERN, ["a", "settler_*"]), (PATTERN, ["b", "settler_*"])),
        ((PATTERN, ["a", "settler_*"]), (PATTERN, ["b", "settler_7*"])),
        ((PATTERN, ["a", "settler_7*"]), (PATTERN, ["b", "settler_*"])),
        ((PATTERN, ["a", "settler_*"]), (PATTERN, ["a", "settler_7*"])),
        ((PATTERN, ["a", "outs*"]), (ADD, ["b", "outsider", None])),
        ((ADD, ["a", "outsider", None]), (PATTERN, ["b", "outs*"])),
        ((ADD, ["a", "outsider", None]), (PATTERN, ["a", "outsider*"])),
        ((ADD, ["a", "outsider", None]), (ADD, ["b", "outsider", None])),
    ],
)
def test_r6_entries_that_could_name_one_login_twice_are_refused(
    dba: psycopg.Connection[Any], before: tuple[str, list[Any]], after: tuple[str, list[Any]]
) -> None:
    dba.execute(*before)
    dba.execute(*before)  # the same again changes nothing
    assert refused(lambda: dba.execute(*after)) == "PF301"
    assert dba.execute(
        "select count(*) from pgfence.workload_roles where role_name !~ '^worker'"
    ).fetchone() == (1,)


@pytest.mark.parametrize("workload", [None, "", "two words", "x" * 256])
def test_r6_a_workload_is_an_id(dba: psycopg.Connection[Any], workload: str | None) -> None:
    assert refused(lambda: dba.execute(ADD, [workload, "outsider", None])) == "PF301"


def test_r6_only_the_very_entry_is_taken_out(dba: psycopg.Connection[Any]) -> None:
    dba.execute(PATTERN, ["a", "settler_*"])
    for other in (
        "remove_workload('settler_')", "remove_workload_pattern('settler_x')",
        "remove_workload_pattern('settler_')", "remove_workload_pattern('settler*')",
        "remove_workload('worker_a', 'cert:CN=one')",
    ):  # fmt: skip
        assert dba.execute(f"select pgfence.{other}").fetchone() == (False,), other
    assert dba.execute("select pgfence.remove_workload_pattern('settler_*')").fetchone() == (True,)
    assert dba.execute("select pgfence.remove_workload('worker_a')").fetchone() == (True,)


def test_r6_two_who_add_one_login_at_once_do_not_give_it_to_two_workloads(
    dba: psycopg.Connection[Any], database: Database
) -> None:
    second = database.connect("dba")
    dba.execute("begin")
    dba.execute(PATTERN, ["a", "outs*"])
    waiting = in_background(lambda: second.execute(ADD, ["b", "outsider", None]))
    wait_until_blocked(database.connect(), second.info.backend_pid)
    dba.execute("commit")
    assert refused(lambda: waiting.result(PATIENCE)) == "PF301"


def test_r6_role_that_two_entries_should_name_is_nobody(
    dba: psycopg.Connection[Any], database: Database, login: Login
) -> None:
    dba.execute(PATTERN, ["settlement", "settler_*"])
    worker = login("settler_1")
    held = worker.acquire(RESOURCE)
    as_owner(database, "insert into pgfence.workload_roles values ('settler_1', 'another')")
    assert worker.apply(held.token, 1).verdict == "NOT_OWNER"
    assert refused(lambda: worker.ask(RESOURCE)) == "PF302"


def test_r6_role_that_was_renamed_is_what_its_name_says_from_then_on(
    dba: psycopg.Connection[Any], database: Database, login: Login
) -> None:
    dba.execute(PATTERN, ["settlement", "settler_*"])
    worker = login("settler_1")
    held = worker.acquire(RESOURCE)
    for segment in (1, 2):
        worker.apply(held.token, segment)
    with psycopg.connect(database.dsn(), autocommit=True) as superuser:
        superuser.execute("alter role settler_1 rename to renamed_1")
        assert worker.apply(held.token, 3).verdict == "NOT_OWNER"
        superuser.execute("alter role renamed_1 rename to settler_1")
    assert worker.apply(held.token, 3).verdict == "ACCEPTED"


def test_r6_set_role_and_settings_do_not_make_a_role_of_the_pattern(
    dba: psycopg.Connection[Any], database: Database, login: Login
) -> None:
    dba.execute(PATTERN, ["settlement", "settler_*"])
    held = login("settler_1").acquire(RESOURCE)
    stranger = login("stranger_1")
    with psycopg.connect(database.dsn(), autocommit=True) as superuser:
        superuser.execute("grant settler_1 to stranger_1")
    stranger.conn.execute("set application_name = 'settler_1'")
    stranger.conn.execute("set pgfence.workload = 'settlement'")
    stranger.conn.execute("set role settler_1")
    assert stranger.apply(held.token, 1).verdict == "NOT_OWNER"
    assert refused(lambda: stranger.ask("another")) == "PF302"


# SYSTEM_USER


@pytest.fixture
def certificates(database: Database) -> None:
    """SYSTEM_USER is what the test says, as if each session had a certificate of its own."""
    with psycopg.connect(database.dsn()) as conn:
        if conn.info.server_version < 160000:
            pytest.skip("SYSTEM_USER came with PostgreSQL 16")
        conn.execute("set role pgfence_owner")
        conn.execute(
            "create or replace function pgfence._system_user() returns text language plpgsql stable"
            " set search_path = pg_catalog, pg_temp"
            " as 'begin return current_setting(''test.certificate'', true); end'"
        )


def with_certificate(name: str) -> dict[str, Any]:
    return {"options": f"-c test.certificate=cert:CN={name}"}


@pytest.mark.usefixtures("certificates")
def test_r6_two_certificates_of_one_role_are_two_workloads_also_for_the_quick_way(
    dba: psycopg.Connection[Any], database: Database, login: Login
) -> None:
    one, other, nobody = (
        login("pool_role", **with_certificate(name)) for name in ("one", "other", "nobody")
    )
    for name in ("one", "other"):
        dba.execute(ADD, [f"workload-{name}", "pool_role", f"cert:CN={name}"])
    held = one.acquire(RESOURCE)
    assert one.apply(held.token, 1).verdict == "ACCEPTED"
    assert one.apply(held.token, 2).verdict == "ACCEPTED"
    assert fence_row(database, RESOURCE).checked_role is None
    assert other.apply(held.token, 3).verdict == "NOT_OWNER"
    assert nobody.apply(held.token, 3).verdict == "NOT_OWNER"
    assert refused(lambda: nobody.ask("another")) == "PF302"
    # control: had the first one armed the quick way, it would have let the other one pass
    as_owner(database, "update pgfence.fences set checked_role = 'pool_role'")
    assert other.apply(held.token, 3).verdict == "ACCEPTED"


@pytest.mark.usefixtures("certificates")
def test_r6_certificate_that_was_taken_out_is_refused_at_once(
    dba: psycopg.Connection[Any], login: Login
) -> None:
    worker = login("pool_role", **with_certificate("one"))
    dba.execute(ADD, ["workload-one", "pool_role", "cert:CN=one"])
    held = worker.acquire(RESOURCE)
    worker.apply(held.token, 1)
    dba.execute("select pgfence.remove_workload('pool_role', 'cert:CN=one')")
    assert worker.apply(held.token, 2).verdict == "NOT_OWNER"


@pytest.mark.usefixtures("certificates")
@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "cert:CN=one"), ("cert:CN=one", None), ("cert:CN=one", "cert:CN=one")],
)
def test_r6_role_and_certificate_never_name_one_session_twice(
    dba: psycopg.Connection[Any], before: str | None, after: str | None
) -> None:
    dba.execute(ADD, ["a", "outsider", before])
    assert refused(lambda: dba.execute(ADD, ["b", "outsider", after])) == "PF301"


@pytest.mark.usefixtures("certificates")
@pytest.mark.parametrize("system_user", ["", "alice", "cert:", ":alice", "CERT:alice"])
def test_r6_what_is_no_system_user_is_refused(
    dba: psycopg.Connection[Any], system_user: str
) -> None:
    assert refused(lambda: dba.execute(ADD, ["a", "outsider", system_user])) == "PF301"


def test_r6_system_user_is_what_the_server_says(
    dba: psycopg.Connection[Any], database: Database, login: Login
) -> None:
    worker = login("pool_role")
    if worker.conn.info.server_version < 160000:
        assert refused(lambda: dba.execute(ADD, ["a", "pool_role", "cert:CN=x"])) == "PF301"
        return
    (system_user,) = worker.conn.execute("select system_user").fetchone() or (None,)
    dba.execute(ADD, ["a", "pool_role", system_user or "scram-sha-256:pool_role"])
    if system_user is None:  # a server that asks for no password
        assert refused(lambda: worker.ask(RESOURCE)) == "PF302"
    else:
        assert worker.ask(RESOURCE).state == "SIGNING"


# what else asks who acts for a workload


def test_r26_table_of_a_role_that_a_pattern_names_is_not_protected(
    dba: psycopg.Connection[Any], database: Database
) -> None:
    owner = database.connect("billing_owner")
    owner.execute("create table invoices (batch_date date)")
    protect = "select pgfence.protect('invoices', 'invoice-batch/{batch_date}')"
    dba.execute(PATTERN, ["billing", "billing_*"])
    assert refused(lambda: owner.execute(protect)) == "PF304"
    dba.execute("select pgfence.remove_workload_pattern('billing_*')")
    owner.execute(protect)
    dba.execute(PATTERN, ["billing", "billing_*"])
    assert refused(lambda: owner.execute("select pgfence.unprotect('invoices')")) == "42501"
    dba.execute("select pgfence.remove_workload_pattern('billing_*')")
    owner.execute("select pgfence.unprotect('invoices')")


@pytest.mark.usefixtures("certificates")
def test_r26_role_of_certificates_is_a_workload_for_the_guard_whichever_it_shows(
    dba: psycopg.Connection[Any], database: Database
) -> None:
    owner = database.connect("billing_owner", **with_certificate("nobody"))
    owner.execute("create table invoices (batch_date date)")
    owner.execute("select pgfence.protect('invoices', 'invoice-batch/{batch_date}')")
    dba.execute(ADD, ["billing", "billing_owner", "cert:CN=one"])
    assert refused(lambda: owner.execute("select pgfence.unprotect('invoices')")) == "42501"
