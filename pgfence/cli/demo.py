"""pgfence demo"""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from pgfence.cli.output import Json, console, print_json, print_table, reported
from pgfence.embedded import Server

if TYPE_CHECKING:
    from pgfence.demo import Outcome

_TITLES = {
    False: "1. With a lease, as with any lock service: look at the lease, then write",
    True: "2. With the same lease, and the table protected by pgfence",
}


@reported
def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the database up, and say how to connect.")
    ] = False,
    as_json: Json = False,
) -> None:
    """See a stale owner write, and then see PostgreSQL refuse it. Takes about 20 seconds.

    On a PostgreSQL of its own (from pip install 'pgfence[embedded]'), without Docker, as any user.
    """
    from pgfence import demo as play  # needs Alembic, which takes a while to load

    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]  # libpq's settings for other servers are not for ours
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    out = console()
    out.quiet = as_json
    began = time.monotonic()
    with _Narrator(out) as narrator, _server(keep, narrator) as server:
        narrator.tell("demo", f"PostgreSQL runs on 127.0.0.1:{server.port}, for this demo only")
        narrator.waiting("pgfence is installed")
        stage = play.prepare(server)
        narrator.tell("dba", "has installed pgfence, as a role that is no superuser")
        outcomes = []
        with play.registry(stage):
            for fenced in (False, True):
                narrator.begin(_TITLES[fenced])
                outcomes.append(play.run(stage, narrator, fenced=fenced))
                _show_outcome(out, outcomes[-1])
        answers = [
            {"question": question, "sql": query, "rows": stage.ask(query)}
            for question, query in play.questions()
        ]
        _show_answers(out, narrator, answers)
        kept = _kept(server, play.DATABASE, play.ROLES) if keep else None
        for line in _how_to(kept) if kept else []:
            out.print(line, soft_wrap=True)
    if as_json:
        print_json(
            {
                "seconds": round(time.monotonic() - began, 1),
                "runs": outcomes,
                "queries": answers,
                "kept": kept,
            }
        )


@contextmanager
def _server(keep: bool, narrator: "_Narrator") -> Iterator[Server]:
    """A server that goes at the end; with `keep` only if the demo fails."""
    narrator.begin("pgfence demo: a worker sleeps past its lease, wakes up, and writes")
    narrator.waiting("a PostgreSQL server is made")
    server = Server(keep=keep)
    try:
        yield server.start()
    except BaseException:
        server.remove()
        raise
    if not keep:
        server.remove()


class _Narrator:
    """Tells the demo on a console: lines that stay, and on a screen one that moves."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._began = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            console=out,
            transient=True,
            disable=not out.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, visible=False)

    def __enter__(self) -> "_Narrator":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, title: str) -> None:
        self._progress.update(self._task, visible=False)
        self._out.print()
        self._out.print(title, style="bold")

    def tell(self, who: str, what: str) -> None:
        line = Table.grid(padding=(0, 2, 0, 0))
        text = Text(what)
        text.highlight_words(["STALE_OWNER", "NOT_ADMITTED", "NOT_HELD"], "bold green")
        text.highlight_words(["WRITTEN"], "bold red")
        line.add_row(f"{time.monotonic() - self._began:5.1f} s", f"{who:<13}", text)
        self._out.print(line)

    def pages(self, who: str, done: int, total: int) -> None:
        self._show(f"{who} settles the batch", done, total)

    def waiting(self, what: str) -> None:
        self._show(what)

    def _show(self, what: str, done: int = 0, total: int | None = None) -> None:
        self._progress.reset(
            self._task, description=what, completed=done, total=total, visible=True
        )


def _show_outcome(out: Console, outcome: "Outcome") -> None:
    out.print()
    if not outcome.wrong:
        out.print(
            f"All {outcome.invoices:,} invoices are right: {_money(outcome.charged_cents)} were "
            "due, and charged.",
            style="green",
        )
        return
    too_much = outcome.charged_cents - outcome.due_cents
    out.print(
        f"{outcome.wrong} of {outcome.invoices:,} invoices are wrong: {_money(outcome.due_cents)} "
        f"were due, {_money(outcome.charged_cents)} were charged, {_money(too_much)} too much. "
        "Worker-a has written over what worker-b had settled with the credit notes:",
        style="red",
    )
    _print_rows(out, outcome.examples)


def _show_answers(out: Console, narrator: _Narrator, answers: list[dict[str, Any]]) -> None:
    narrator.begin("3. What a DBA can ask afterwards, as a role in pgfence_auditor")
    for answer in answers:
        out.print()
        out.print(answer["question"], style="bold")
        out.print(answer["sql"], style="cyan", soft_wrap=True)
        _print_rows(out, answer["rows"])


def _print_rows(out: Console, rows: list[dict[str, Any]]) -> None:
    values = [[_time_of_day(value) for value in row.values()] for row in rows]
    print_table(out, list(rows[0]), values)


def _time_of_day(value: object) -> object:
    return f"{value:%H:%M:%S.%f}"[:-3] if isinstance(value, datetime) else value


def _money(cents: int) -> str:
    return f"{cents // 100:,}.{cents % 100:02}"


def _kept(server: Server, database: str, roles: Iterable[str]) -> dict[str, str]:
    """How to use, and how to end, a server that stays."""
    password_file = f"PGPASSFILE={quote(str(server.password_file))}"
    psql = quote(str(server.bin_dir / "psql"))
    where = f"-h 127.0.0.1 -p {server.port} -d {database}"
    dsn = f"postgresql://registry@127.0.0.1:{server.port}/{database}"
    key = quote(str(server.directory / "grant.key"))
    return {
        "connect": f"{password_file} {psql} {where} -U postgres",
        "roles": ", ".join(["postgres", *roles]),
        "registry": f"{password_file} PGFENCE_DSN={dsn} pgfence registry serve --key {key}",
        "stop": f"kill -INT {server.pid}",
        "delete": f"rm -r {quote(str(server.directory))}",
    }


def _how_to(kept: dict[str, str]) -> Iterator[str]:
    yield ""
    yield f"The server is still up.  Connect:  {kept['connect']}"
    yield f"                         or as:    {kept['roles']}"
    yield f"Sign grants again:                 {kept['registry']}"
    yield f"Stop it:                           {kept['stop']}"
    yield f"Then delete its data:              {kept['delete']}"
