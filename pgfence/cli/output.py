"""What all commands share: options, the connection, tables and JSON, and how errors are told.

Exit codes (docs/cli.md): 0 fine, 1 something was found, 2 usage, 3 the database cannot be reached,
4 refused, 130 interrupted.
"""

import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import wraps
from typing import Annotated, Any, NoReturn, ParamSpec

import psycopg
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from pgfence import observe
from pgfence.client.protocol import SCHEMA_VERSION
from pgfence.drivers.psycopg import read_timestamps
from pgfence.errors import PgfenceError, SchemaVersionError, from_sqlstate
from pgfence.model.canonical import is_identifier

FOUND, USAGE, UNREACHABLE, REFUSED, INTERRUPTED = 1, 2, 3, 4, 130

#: The rights that most commands take, for `database`.
OWNER, AUDITOR = "a member of pgfence_owner", "a role in pgfence_auditor"

Dsn = Annotated[
    str,
    typer.Option(
        envvar="PGFENCE_DSN",
        show_default=False,
        help="Connection URL or string; else libpq's PGHOST and so on. Others see a command line: "
        "give a password in the environment, or in ~/.pgpass.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]

Reason = Annotated[
    str, typer.Option(show_default=False, help="Why, in your words, for pgfence.journal.")
]

Metrics = Annotated[
    str,
    typer.Option(
        metavar="[ADDRESS:]PORT",
        show_default=False,
        help="Answer /metrics there, on 127.0.0.1 unless an address is given.",
    ),
]

Connection = psycopg.Connection[Any]
_P = ParamSpec("_P")


def console(*, stderr: bool = False) -> Console:
    """For people. Where nobody looks (a file, a pipe) nothing is cut to the width of a screen."""
    out = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not out.is_terminal:
        out.width = 200
    return out


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2, default=_plain))


def print_table(out: Console, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; None is shown as nothing."""
    table = Table(box=box.SIMPLE_HEAD if out.is_terminal else box.MARKDOWN)
    for number, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[number], int | Decimal) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else text(value) for value in row))
    out.print(table)


def log_to_stdout(*, as_json: bool) -> None:
    """What a process that stays says of itself: lines for people, or an object of JSON each."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Lines(as_json=as_json))
    logger = logging.getLogger("pgfence")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def serve_metrics(where: str, handover_budget: float = observe.HANDOVER_BUDGET) -> None:
    """Answer /metrics at [ADDRESS:]PORT; nothing where that is empty."""
    if not where:
        return
    address, _, port = where.rpartition(":")
    if not (port.isdecimal() and int(port) < 65536):
        raise typer.BadParameter(f"{where!r} is not [ADDRESS:]PORT", param_hint="--metrics")
    try:
        observe.serve_metrics(int(port), address or "127.0.0.1", handover_budget=handover_budget)
    except OSError as error:
        raise typer.BadParameter(f"{where}: {error.strerror}", param_hint="--metrics") from error


def resource_id(given: str) -> str:
    """A resource as it was given on the command line; a usage error for what can name none."""
    if not is_identifier(given):
        raise typer.BadParameter(
            f"{given!r} is not an ID: 1 to 255 printable ASCII characters without space, double "
            "quote or backslash",
            param_hint="RESOURCE",
        )
    return given


class _Lines(logging.Formatter):
    """Events as they are; for people as 2026-07-19T10:00:00.000+00:00 signed fence_token=7 …

    Plain text comes too: from pgfence's client, where a handler uses it. In JSON that is the event
    `log`, for people it stays what it is.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        fields = _event_in(message)
        if not fields:
            text = super().format(record)  # with the traceback, where there is one
            if not self._as_json:
                return text
            return observe.line("log", level=record.levelname, logger=record.name, message=text)
        if self._as_json:
            return message
        head = f"{fields.pop('time')} {fields.pop('event')}"
        return " ".join([head, *(f"{name}={value}" for name, value in fields.items())])


def _event_in(message: str) -> dict[str, Any]:
    """The fields of an event; none for plain text."""
    try:
        fields = json.loads(message)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) and {"time", "event"} <= fields.keys() else {}


@contextmanager
def database(dsn: str, needs: str) -> Iterator[Connection]:
    """A connection in autocommit to a database with pgfence of our version in it.

    needs: the rights that the command takes, for the error of a role that does not have them.
    """
    with (
        psycopg.connect(dsn, autocommit=True, application_name="pgfence") as conn,
        rights_told(conn, needs),
    ):
        read_timestamps(conn)
        check_version(conn)
        yield conn


@contextmanager
def rights_told(conn: Connection, needs: str) -> Iterator[None]:
    """What this role may not do in the block is an error that says what it takes."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        message = f"role {conn.info.user}: {error.diag.message_primary}"
        raise _DatabaseRefusedError(message, f"This takes {needs}.") from error


def check_version(conn: Connection) -> None:
    """Return if pgfence of our version is in the database. Raises `SchemaVersionError`."""
    try:
        row = conn.execute("select pgfence.schema_version()").fetchone()
    except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction) as error:
        raise SchemaVersionError(
            f"pgfence is not installed in database {conn.info.dbname}"
        ) from error
    if row != (SCHEMA_VERSION,):
        raise SchemaVersionError(
            f"database {conn.info.dbname} has pgfence's schema {row[0] if row else None}, this "
            f"command is for {SCHEMA_VERSION}"
        )


class _DatabaseRefusedError(PgfenceError):
    """What PostgreSQL, not pgfence, refused, and what to do about it."""

    def __init__(self, message: str, next_step: str | None) -> None:
        super().__init__(message)
        self._next_step = next_step

    @property
    def next_step(self) -> str | None:
        return self._next_step


def reported(command: Callable[_P, None]) -> Callable[_P, None]:
    """A command whose expected errors end in a sentence and an exit code, not in a traceback."""

    @wraps(command)
    def wrapped(*arguments: _P.args, **options: _P.kwargs) -> None:
        with told():
            command(*arguments, **options)

    return wrapped


@contextmanager
def told(
    *, unreachable: int = UNREACHABLE, refused: int = REFUSED, needs: str | None = None
) -> Iterator[None]:
    """Expected errors of the block are told, and end in an exit code.

    needs: the rights that the block takes, where it does not connect by way of `database`.
    """
    try:
        yield
    except PgfenceError as error:
        fail(refused, str(error), error.next_step)
    except psycopg.Error as error:
        _fail_with(error, unreachable, refused, needs)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        raise  # whoever reads us has stopped, and typer knows what to do
    except OSError as error:
        fail(refused, f"a file or an output cannot be used: {error}")
    except UnicodeEncodeError as error:
        if error.encoding != "utf-8":
            raise
        # Which one is not said: it may be a DSN with a password.
        fail(USAGE, "an argument, or a variable of the environment, is not in UTF-8")


def _fail_with(error: psycopg.Error, unreachable: int, refused: int, needs: str | None) -> NoReturn:
    diag = error.diag
    ours = from_sqlstate(
        error.sqlstate, str(diag.message_primary), diag.message_detail, diag.message_hint
    )
    if ours is not None:
        fail(refused, str(ours), ours.next_step)
    if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
        fail(USAGE, str(error).strip(), "A DSN is like postgresql://role@host/database.")
    # No SQLSTATE: no answer, or not let in. 08: connection failure, 57P: the server ends sessions,
    # or takes none yet. The rest of class 57 is a statement that was cancelled.
    if error.sqlstate is None or error.sqlstate.startswith(("08", "57P")):
        fail(unreachable, str(error).strip(), "Check --dsn or PGFENCE_DSN, and that it is up.")
    next_step = diag.message_hint
    if needs and isinstance(error, psycopg.errors.InsufficientPrivilege):
        next_step = f"This takes {needs}."
    fail(refused, f"PostgreSQL: {diag.message_primary or error}", next_step)


def fail(code: int, message: str, next_step: str | None = None) -> NoReturn:
    """Tell an error, and what to do about it, and end."""
    out = console(stderr=True)
    out.print(f"pgfence: {message}", soft_wrap=True)
    if next_step:
        out.print(f"next: {next_step}", soft_wrap=True)
    raise typer.Exit(code)


def text(value: object) -> str:
    """A value as a table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.isoformat(" ", "milliseconds") if isinstance(value, datetime) else str(value)


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal) and value == int(value):
        return int(value)
    return str(value)
