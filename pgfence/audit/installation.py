"""What the SQL of this package makes in a database, so that doctor can say what was changed since.

Read from the files themselves (sql/README.md says how they are written), not from a second list.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from pgfence import install

_FUNCTION = re.compile(
    r"^create function (?P<name>[\w.]+)\((?P<head>.*?)\bas \$\$(?P<body>.*?)\$\$;",
    re.DOTALL | re.MULTILINE,
)
_GRANT = re.compile(
    r"^grant (?P<right>\w+) on (?:function |schema )?(?P<name>[\w.]+)(?:\([^)]*\))?"
    r" to (?P<roles>[\w, ]+);",
    re.MULTILINE,
)
_TABLE = re.compile(r"^create table ([\w.]+)", re.MULTILINE)
_VIEW = re.compile(r"^create view ([\w.]+)", re.MULTILINE)
_TRIGGER = re.compile(
    r"create (?:constraint )?trigger (?P<name>\w+) (?P<time>before|after) (?P<events>.*?)"
    r" on (?P<table>[\w.]+|%s)(?P<rest>.*?)execute function (?P<function>[\w.]+)\(\)",
    re.DOTALL,
)
_LITERAL = re.compile(r"'((?:[^']|'')*)'")
# pg_trigger.tgtype
_ROW, _BEFORE = 1, 2
_EVENTS = {"insert": 4, "delete": 8, "update": 16, "truncate": 32}


@dataclass(frozen=True, slots=True)
class Function:
    """A function. roles: who may execute it; source: the statement that makes it again."""

    name: str
    body: str
    definer: bool
    volatility: str
    roles: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or view. roles: who may read it."""

    name: str
    is_table: bool
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger on a table of pgfence; all of them fire ALWAYS. type: as in pg_trigger.tgtype."""

    table: str
    name: str
    function: str
    type: int
    has_condition: bool
    is_deferred: bool
    source: str


@dataclass(frozen=True, slots=True)
class Installation:
    """Everything that doctor compares."""

    functions: tuple[Function, ...]
    relations: tuple[Relation, ...]
    triggers: tuple[Trigger, ...]


@cache
def installation() -> Installation:
    """What this package installs."""
    sql = install.manifest_sql()
    roles = {
        (match["right"], match["name"]): tuple(re.split(r",\s*", match["roles"]))
        for match in _GRANT.finditer(sql)
    }
    tables = _TABLE.findall(sql)
    return Installation(
        functions=tuple(
            _function(match, roles.get(("execute", match["name"]), ()))
            for match in _FUNCTION.finditer(sql)
        ),
        relations=tuple(
            Relation(name, name in tables, roles.get(("select", name), ()))
            for name in [*tables, *_VIEW.findall(sql)]
        ),
        triggers=tuple(_triggers(sql, tables)),
    )


def _function(match: re.Match[str], roles: tuple[str, ...]) -> Function:
    volatility = re.search(r"\b(immutable|stable)\b", match["head"])
    return Function(
        name=match["name"],
        body=match["body"],
        definer="security definer" in match["head"],
        volatility=volatility[0] if volatility else "volatile",
        roles=roles,
        source=match[0].replace("create function", "create or replace function", 1),
    )


def _triggers(sql: str, tables: list[str]) -> Iterator[Trigger]:
    for match in _TRIGGER.finditer(sql):
        if match["table"] == "%s":  # not made as it stands, see below
            continue
        yield _trigger(match)
    # grants/close_tables.sql makes one trigger on every table, from a text in pieces
    start = sql.index("'create trigger closed ")
    pieces = _LITERAL.findall(sql[start : sql.index("v_table);", start)])
    for table in tables:
        closed = _TRIGGER.search("".join(pieces).replace("''", "'").replace("%s", table))
        assert closed is not None  # noqa: S101 - a test reads it
        yield _trigger(closed)


def _trigger(match: re.Match[str]) -> Trigger:
    is_row = "for each row" in match["rest"]
    kind = (_ROW if is_row else 0) | (_BEFORE if match["time"] == "before" else 0)
    for event in _EVENTS:
        if re.search(rf"\b{event}\b", match["events"]):
            kind |= _EVENTS[event]
    return Trigger(
        table=match["table"],
        name=match["name"],
        function=match["function"],
        type=kind,
        has_condition=bool(re.search(r"\bwhen \(", match["rest"])),
        is_deferred="initially deferred" in match["rest"],
        source=f"{match[0]};",
    )
