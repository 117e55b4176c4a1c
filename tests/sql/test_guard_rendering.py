"""The resource of a row: the same under every setting of a client, and its own alone."""

from __future__ import annotations

import itertools
import json
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.guarded import Writer, protect, refused, run
from tests.support import Database, Keys

pytestmark = pytest.mark.rule("R23")

UUID = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"

# (type, value as SQL writes it, how it stands in the resource; None: it cannot)
RENDERED: list[tuple[str, str, str | None]] = [
    ("text", "a/b", "a/b"),
    ("text", "", ""),
    ("text", "{}'%$~!", "{}'%$~!"),
    ("text", "a b", None),
    ("text", 'a"b', None),
    ("text", "a\\b", None),
    ("text", "a\nb", None),
    ("text", "é", None),
    ("text", "x" * 251, "x" * 251),
    ("text", "x" * 252, None),  # with x/y/ more than a resource may have
    ("varchar(10)", "abc", "abc"),
    ("char(5)", "abc", "abc"),
    ("smallint", "-7", "-7"),
    ("integer", "2147483647", "2147483647"),
    ("bigint", "-9223372036854775808", "-9223372036854775808"),
    ("numeric", "1.0", "1"),
    ("numeric", "-0.00", "0"),
    ("numeric", "100", "100"),
    ("numeric", "1e20", "100000000000000000000"),
    ("numeric(10,4)", "1.5", "1.5"),
    ("numeric", "NaN", None),
    ("numeric", "Infinity", None),
    ("boolean", "yes", "true"),
    ("boolean", "0", "false"),
    ("uuid", UUID, UUID.lower()),
    ("date", "2026-07-19", "2026-07-19"),
    ("date", "0001-01-01", "0001-01-01"),
    ("date", "9999-12-31", "9999-12-31"),
    ("date", "10000-01-01", None),
    ("date", "0044-03-15 BC", None),
    ("date", "infinity", None),
    ("date", "-infinity", None),
    ("timestamp", "2026-07-19 10:11:12.5", "2026-07-19T10:11:12.500000"),
    ("timestamp", "9999-12-31 23:59:59.999999", "9999-12-31T23:59:59.999999"),
    ("timestamp", "10000-01-01 00:00:00", None),
    ("timestamp", "infinity", None),
    ("timestamptz", "2026-07-19 10:11:12+02", "2026-07-19T08:11:12.000000Z"),
    ("timestamptz", "2026-07-19 23:00:00-05", "2026-07-20T04:00:00.000000Z"),
    ("timestamptz", "-infinity", None),
]

HOSTILE_SETTINGS = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kolkata",
    "timezone_abbreviations": "India",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "quote_all_identifiers": "on",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "plan_cache_mode": "force_custom_plan",
    "plpgsql.extra_errors": "all",
    "plpgsql.check_asserts": "off",
    "row_security": "off",
    "jit_above_cost": "0",
    "enable_indexscan": "off",
    "enable_hashagg": "off",
    "work_mem": "64",
    "default_transaction_isolation": "serializable",
    "search_path": "pg_temp",
}


def resource_of(error: psycopg.Error) -> str | None:
    detail = error.diag.message_detail
    assert detail is not None
    resource: str | None = json.loads(detail).get("resource")
    return resource


def rendered(conn: psycopg.Connection[Any], table: str, values: str) -> str | None:
    """The resource that an insert is refused for; None where the row has none."""
    with pytest.raises(psycopg.Error) as caught:
        run(conn, f"insert into public.{table} values ({values})")
    assert caught.value.sqlstate == "PF201", caught.value
    return resource_of(caught.value)


def literal(value: str) -> str:
    return sql.Literal(value).as_string()


def make(owner: psycopg.Connection[Any], name: str, columns: str, template: str) -> None:
    run(owner, f"create table {name} ({columns})")
    run(owner, f"grant select, insert, update, delete on {name} to pgfence_app")
    protect(owner, name, template)


@pytest.mark.parametrize("session", ["plain", "hostile"])
def test_r23_resource_of_each_type_is_the_same_under_every_setting(
    database: Database, owner: psycopg.Connection[Any], session: str
) -> None:
    types = list(dict.fromkeys(column_type for column_type, _, _ in RENDERED))
    for number, column_type in enumerate(types):
        make(owner, f"t{number}", f"a text, v {column_type}", "x/{a}/{v}")
    conn = database.connect("worker_a")
    if session == "hostile":
        for name, value in HOSTILE_SETTINGS.items():
            run(
                conn,
                f"set {name} = {literal(value)}"
                if name != "search_path"
                else f"set search_path = {value}",
            )
    for column_type, value, expected in RENDERED:
        values = f"'y', E{literal(value).lstrip(' E')}::{column_type}"
        found = rendered(conn, f"t{types.index(column_type)}", values)
        assert found == (None if expected is None else f"x/y/{expected}"), (column_type, value)


def test_r23_write_is_admitted_under_hostile_settings(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make(owner, "events", "at timestamptz, n integer", "events/{at}")
    writer = Writer.login(database, keys)
    with writer.admitted("events/2026-07-19T10:00:00.000000Z") as conn:
        for name, value in HOSTILE_SETTINGS.items():
            if name != "default_transaction_isolation":
                run(
                    conn, f"set local {name} = {value if name == 'search_path' else literal(value)}"
                )
        run(
            conn,
            "insert into public.events values"
            " ('2026-07-19 12:00:00+02', 1), ('2026-07-19 10:00:00+00', 2)",
        )
        run(conn, "update public.events set n = 3")
        run(conn, "delete from public.events where n = 3")
        with refused():
            run(conn, "insert into public.events values ('2026-07-19 10:00:00', 1)")


def test_r23_null_names_no_resource(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make(owner, "t", "id integer, a text, b date", "x/{a}/{b}")
    writer = Writer.login(database, keys)
    for row in ("1, null, '2026-07-19'", "1, 'y', null", "1, null, null"):
        assert rendered(writer.conn, "t", row) is None
    # among rows that are admitted, and whichever comes first
    for rows in (
        "(1, 'y', '2026-07-19'), (2, null, '2026-07-19')",
        "(2, 'y', null), (1, 'y', '2026-07-19')",
    ):
        with refused() as error, writer.admitted("x/y/2026-07-19") as conn:
            run(conn, f"insert into t values {rows}")
        assert "no resource" in str(error)
    with writer.admitted("x/y/2026-07-19") as conn:
        run(conn, "insert into t values (1, 'y', '2026-07-19')")
    for change in ("a = null", "b = null"):
        with refused(), writer.admitted("x/y/2026-07-19") as conn:
            run(conn, f"update t set {change}")


def test_r23_rows_without_resource_from_before_protect_cannot_be_touched(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    run(owner, "create table t (id integer, a text)")
    run(owner, "insert into t values (1, null), (2, 'y')")
    run(owner, "grant select, insert, update, delete on t to pgfence_app")
    protect(owner, "t", "x/{a}")
    writer = Writer.login(database, keys)
    for attack in ("delete from t", "update t set a = 'y'", "delete from t where a is null"):
        with refused() as error, writer.admitted("x/y") as conn:
            run(conn, attack)
        assert "no resource" in str(error)


@pytest.mark.parametrize(
    ("naming", "columns"),
    [
        ("x/{a}/{b}", "a text, b text"),
        ("x/{a}-{b}", "a integer, b integer"),
        ("{a}:{b}", "a numeric, b integer"),
        ("{a}--{b}", "a text, b date"),
        ("{a}e{b}", "a boolean, b text"),
        ("{b}/{a}", "a text, b uuid"),
    ],
)
def test_r23_rows_with_other_values_never_share_a_resource(
    database: Database, owner: psycopg.Connection[Any], naming: str, columns: str
) -> None:
    values = {
        "text": ["", "/", "//", "-", "--", "a", "a/", "/a", "a/b", "a-", "-a", "e", "se", ":"],
        "integer": ["0", "1", "-1", "11", "-11", "10"],
        "numeric": ["0", "1", "-1", "1.1", "11", "-1.1"],
        "date": ["2026-07-19", "2026-07-20"],
        "boolean": ["true", "false"],
        "uuid": [UUID, UUID.replace("A", "B")],
    }
    make(owner, "t", columns, naming)
    conn = database.connect("worker_a")
    types = [column.split()[1] for column in columns.split(", ")]
    seen: dict[str, tuple[str, ...]] = {}
    for row in itertools.product(*(values[column_type] for column_type in types)):
        resource = rendered(conn, "t", ", ".join(literal(value) for value in row))
        if resource is not None:
            assert resource not in seen, (resource, row, seen[resource])
            seen[resource] = row
    assert len(seen) >= 20


def test_r23_value_with_the_separator_after_it_is_refused(
    database: Database, owner: psycopg.Connection[Any]
) -> None:
    make(owner, "t", "a text, b text", "tenant/{a}/{b}")
    conn = database.connect("worker_a")
    assert rendered(conn, "t", "'p/q', 'r'") is None
    assert rendered(conn, "t", "'p', 'q/r'") == "tenant/p/q/r"


def test_r23_collation_that_ignores_case_does_not_merge_resources(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    try:
        run(
            owner,
            "create collation ignore_case"
            " (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        )
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without ICU")
    make(owner, "t", "a text collate ignore_case, b text collate ignore_case", "x/{a}/{b}")
    writer = Writer.login(database, keys)
    with writer.admitted("x/abc/d") as conn:
        run(conn, "insert into t values ('abc', 'd')")
    for rows in ("('abc', 'd'), ('ABC', 'd')", "('ABC', 'd'), ('abc', 'd')"):
        with refused() as error, writer.admitted("x/abc/d") as conn:
            run(conn, f"insert into t values {rows}")
        assert resource_of(error) == "x/ABC/d"
    with refused(), writer.admitted("x/abc/d") as conn:
        run(conn, "update t set a = 'ABC'")


def test_r23_numbers_that_are_equal_are_one_resource(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make(owner, "t", "a numeric, b char(3)", "x/{a}/{b}")
    writer = Writer.login(database, keys)
    with writer.admitted("x/1/a") as conn:
        run(conn, "insert into t values (1, 'a'), (1.0, 'a  '), (1.00, 'a')")


def test_r23_many_resources_in_one_statement(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make(owner, "t", "id integer, a integer", "x/{a}")
    writer = Writer.login(database, keys)
    resources = [f"x/{n}" for n in range(1, 6)]
    with writer.admitted(*resources) as conn:
        run(conn, "insert into t select n, n % 5 + 1 from generate_series(1, 5000) as n")
        run(conn, "update t set a = a % 5 + 1")
    with refused() as error, writer.admitted(*resources[:-1]) as conn:
        run(conn, "update t set id = 0")
    assert resource_of(error) == "x/5"


def test_r23_template_without_columns_makes_the_table_one_resource(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make(owner, "ledger", "id integer", "ledger")
    writer = Writer.login(database, keys)
    assert rendered(writer.conn, "ledger", "1") == "ledger"
    with writer.admitted("ledger") as conn:
        run(conn, "insert into ledger values (1), (2)")
        run(conn, "update ledger set id = 3")
        run(conn, "delete from ledger")


def test_r23_template_may_name_a_column_twice(
    database: Database, owner: psycopg.Connection[Any], keys: Keys
) -> None:
    make(owner, "t", "a text, b text", "x/{a}/{b}/{a}")
    writer = Writer.login(database, keys)
    assert rendered(writer.conn, "t", "'p', 'q'") == "x/p/q/p"
    with writer.admitted("x/p/q/p", "x/r/s/r") as conn:
        run(conn, "insert into t values ('p', 'q'), ('r', 's')")
        run(conn, "update t set b = b")
