"""What `pgfence demo` does: a worker that slept past its lease wakes up and writes, twice.

Once into a table that nothing but the lease protects, once into a protected one. Everything is
real: a PostgreSQL server, two worker processes (examples/settle.py), SIGSTOP and SIGCONT, leases
that run out. Nothing sleeps for a guessed time; each step waits for the event before it.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from psycopg import sql
from psycopg.rows import dict_row, scalar_row

from pgfence import install, tokens
from pgfence.embedded import Server
from pgfence.errors import PgfenceError
from pgfence.registry.issuer import Issuer
from pgfence.registry.serve import serve
from pgfence.trust import TrustKeys, install_first_bundle

BATCH_DATE = "2026-07-19"
DATABASE = "billing"
#: Worker A is stopped when it has computed this page and not yet written it.
STOPPED_BEFORE = 5
#: The batch that is settled without and with the fence; the schema has the same name.
RESOURCES = {"unfenced": f"unfenced-batch/{BATCH_DATE}", "fenced": f"invoice-batch/{BATCH_DATE}"}

#: Login roles, and the group that each is in.
ROLES = {
    "dba": None,
    "billing_owner": "pgfence_app",
    "worker_a": "pgfence_app",
    "worker_b": "pgfence_app",
    "registry": "pgfence_registry",
    "auditor": "pgfence_auditor",
}
#: How the worker that woke up too late tries to write, for the spectator.
_WAYS = {
    "lease.apply": "lease.apply (its own clock stops it, nothing is sent)",
    "fenced_apply": "pgfence.fenced_apply, past that clock",
    "update": "a plain update",
}
_PATIENCE = 60.0  # seconds until an event that does not come is a failure

Row = dict[str, Any]
Connection = psycopg.Connection[Any]


class DemoFailedError(PgfenceError):
    """The demo did not show what it is there to show."""


class Narrator(Protocol):
    """Who tells the spectator what happens."""

    def begin(self, title: str) -> None:
        """A new part begins."""

    def tell(self, who: str, what: str) -> None:
        """Something has happened."""

    def pages(self, who: str, done: int, total: int) -> None:
        """So many pages of the batch have been written."""

    def waiting(self, what: str) -> None:
        """What is being waited for now."""


@dataclass(frozen=True)
class Attempt:
    """One try of the worker that woke up too late, and what became of it."""

    how: str
    outcome: str
    says: str


@dataclass(frozen=True)
class Outcome:
    """What one run left in the tables. Amounts in cents."""

    fenced: bool
    resource: str
    attempts: list[Attempt]
    invoices: int
    wrong: int
    due_cents: int
    charged_cents: int
    #: Some of the wrong invoices.
    examples: list[Row]


@dataclass
class Stage:
    """A server with pgfence, roles, and the same 2,000 invoices in two schemas."""

    server: Server
    passwords: dict[str, str] = field(default_factory=dict)

    def dsn(self, role: str, schema: str | None = None) -> str:
        """How a role connects; its search_path is the schema."""
        dsn = self.server.dsn(DATABASE, role, self.passwords[role])
        return f"{dsn}?options={quote(f'-csearch_path={schema}')}" if schema else dsn

    @contextmanager
    def connected(self, role: str, schema: str | None = None) -> Iterator[Connection]:
        with psycopg.connect(self.dsn(role, schema), autocommit=True) as conn:
            yield conn

    def ask(self, query: str, schema: str | None = None) -> list[Row]:
        """Rows of a query, asked as the auditor."""
        with self.connected("auditor", schema) as conn:
            return conn.cursor(row_factory=dict_row).execute(query.encode()).fetchall()


def prepare(server: Server) -> Stage:
    """Install pgfence as docs/quickstart.md says, and load the invoices."""
    stage = Stage(server, {role: secrets.token_urlsafe(18) for role in ROLES})
    with server.password_file.open("a", encoding="utf-8") as file:
        file.writelines(f"127.0.0.1:*:*:{r}:{p}\n" for r, p in stage.passwords.items())
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        for role, password in stage.passwords.items():
            conn.execute(
                sql.SQL("create role {} login {} password {}").format(
                    sql.Identifier(role),
                    sql.SQL("createrole" if role == "dba" else ""),
                    sql.Literal(password),
                )
            )
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
        conn.execute(sql.SQL("grant create on database {} to dba").format(sql.Identifier(DATABASE)))
        conn.execute("grant pg_signal_backend to registry")
    install.migrate(stage.dsn("dba"))
    keys = TrustKeys(*(Ed25519PrivateKey.generate() for _ in range(3)))
    tokens.write_key(server.directory / "grant.key", keys.grant)
    with stage.connected("dba") as conn:
        for role, group in ROLES.items():
            if group:
                conn.execute(
                    sql.SQL("grant {} to {}").format(sql.Identifier(group), sql.Identifier(role))
                )
        install_first_bundle(conn, DATABASE, keys, valid_days=365)
        conn.execute("select pgfence.add_workload('worker-a', 'worker_a')")
        conn.execute("select pgfence.add_workload('worker-b', 'worker_b')")
    for schema in RESOURCES:
        with psycopg.connect(server.dsn(DATABASE), autocommit=True) as conn:
            conn.execute(
                sql.SQL("create schema {} authorization billing_owner").format(
                    sql.Identifier(schema)
                )
            )
        with stage.connected("billing_owner", schema) as conn:
            _load_invoices(conn, schema)
    return stage


def _load_invoices(conn: Connection, schema: str) -> None:
    examples = install.source_dir("examples")
    conn.execute((examples / "invoices.sql").read_bytes())
    with conn.cursor() as cursor:
        copy = (
            "copy invoices (invoice_id, batch_date, customer, amount_cents) from stdin csv header"
        )
        with cursor.copy(copy) as target:
            target.write((examples / "invoices.csv").read_bytes())
    grants = (
        "grant usage on schema {} to worker_a, worker_b, auditor",
        "grant select on all tables in schema {} to worker_a, worker_b, auditor",
    )
    for grant in grants:
        conn.execute(sql.SQL(grant).format(sql.Identifier(schema)))
    conn.execute("grant update on invoices to worker_a, worker_b")


@contextmanager
def registry(stage: Stage) -> Iterator[None]:
    """A registry that signs grants while the block runs, in a thread of this process."""
    issuer = Issuer(tokens.load_key(stage.server.directory / "grant.key"))
    stop = threading.Event()
    thread = threading.Thread(target=serve, args=(stage.dsn("registry"), issuer, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class WorkerProcess:
    """A worker (examples/settle.py) as a process of its own, and what it tells."""

    def __init__(self, name: str, dsn: str, *arguments: str) -> None:
        package = Path(__file__).resolve().parent.parent
        path = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.name = name
        # In a process group of its own, so that the kernel wakes and ends it if we are killed
        # while it is stopped.
        self._process = subprocess.Popen(
            [sys.executable, install.source_dir("examples") / "settle.py", BATCH_DATE, *arguments],
            env=os.environ | {"PGFENCE_DSN": dsn, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self._events: queue.Queue[Row | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def expect(self, event: str, *, meanwhile: Callable[[], None] | None = None) -> Row:
        """The next thing it tells, which must be this event; `meanwhile` is called now and then."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                told = self._events.get(timeout=0.1)
            except queue.Empty:
                if time.monotonic() > deadline:
                    self.kill()
                    raise self._failed(f"said nothing for {_PATIENCE:.0f} s") from None
                if meanwhile:
                    meanwhile()
                continue
            if told is None:
                raise self._failed("ended")
            if told["event"] != event:
                self.kill()
                raise self._failed(f"told {told}")
            return told

    def stop(self) -> None:
        """SIGSTOP; returns when the kernel says that it is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise DemoFailedError(f"{self.name} (process {self.pid}) did not stop")

    def go_on(self) -> None:
        """SIGCONT, and the line that it waits for."""
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101 - it is a pipe
        stdin.write("go on\n")
        stdin.flush()
        os.kill(self.pid, signal.SIGCONT)

    def finish(self) -> None:
        """Return when it has ended by itself."""
        if self._process.wait(timeout=_PATIENCE):
            raise self._failed("ended")

    def kill(self) -> None:
        """End it, also when it is stopped."""
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        for line in self._process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def _failed(self, what: str) -> DemoFailedError:
        assert self._process.stderr is not None  # noqa: S101 - it is a pipe
        return DemoFailedError(f"{self.name} {what}\n{self._process.stderr.read()}".rstrip())


def questions() -> list[tuple[str, str]]:
    """What a DBA would ask afterwards (examples/audit.sql): each question, and its query."""
    text = (install.source_dir("examples") / "audit.sql").read_text(encoding="utf-8")
    blocks = (block.strip().partition("\n") for block in text.split("\n\n"))
    return [(question.removeprefix("-- "), query) for question, _, query in blocks]


def run(stage: Stage, narrator: Narrator, *, fenced: bool) -> Outcome:
    """Settle the batch: A is stopped in mid-batch, B takes over and finishes, A wakes up."""
    schema = "fenced" if fenced else "unfenced"
    resource = RESOURCES[schema]
    options = [] if fenced else ["--unfenced"]
    if fenced:
        protect = "select pgfence.protect('fenced.invoices', 'invoice-batch/{batch_date}')"
        with stage.connected("billing_owner") as conn:
            conn.execute(protect.encode())
        narrator.tell("billing_owner", f"{protect};")
    first = ["--wait-before", str(STOPPED_BEFORE), "--insist" if fenced else "--unfenced"]
    with _worker("worker-a", stage.dsn("worker_a", schema), *first) as a:
        held = a.expect("held")
        narrator.tell(a.name, f"process {a.pid} holds {resource}, fence {held['fence_token']}")
        _watch_pages(a, narrator, 1, STOPPED_BEFORE - 1, held["pages"])
        page = a.expect("computed")["page"]
        a.stop()
        narrator.tell(a.name, f"has computed page {page} and looked at its lease: held")
        narrator.tell("demo", f"SIGSTOP to process {a.pid}, before it writes page {page}")
        narrator.tell(
            "service", f"books {_book_credit_notes(stage, schema)} credit notes on open invoices"
        )

        with _worker("worker-b", stage.dsn("worker_b", schema), *options) as b:
            held = b.expect("held", meanwhile=lambda: _tell_lease(stage, resource, narrator))
            narrator.tell(a.name, "its lease has run out")
            where = "the receipts end" if fenced else "the written rows end"
            narrator.tell(
                b.name,
                f"process {b.pid} holds {resource}, fence {held['fence_token']}; "
                f"{where} at page {held['pages_done']}",
            )
            _watch_pages(b, narrator, held["pages_done"] + 1, held["pages"], held["pages"])
            b.expect("finished")
            b.finish()

        narrator.tell("demo", f"SIGCONT to process {a.pid}: it wakes up and writes page {page}")
        a.go_on()
        attempts = _last_attempts(a, fenced=fenced)
        a.finish()
    for attempt in attempts:
        narrator.tell(a.name, f"{_WAYS[attempt.how]} -> {attempt.outcome}: {attempt.says}")
    outcome = _outcome(stage, schema, attempts)
    _check(outcome)
    return outcome


@contextmanager
def _worker(name: str, dsn: str, *arguments: str) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(name, dsn, *arguments)
    try:
        yield worker
    finally:
        worker.kill()


def _watch_pages(
    worker: WorkerProcess, narrator: Narrator, first: int, last: int, total: int
) -> None:
    for page in range(first, last + 1):
        worker.expect("written")
        narrator.pages(worker.name, page, total)
    narrator.tell(worker.name, f"pages {first} to {last} of {total} written")


def _book_credit_notes(stage: Stage, schema: str) -> int:
    """A tenth of the amount, on every fifth invoice that is not settled yet."""
    with stage.connected("billing_owner", schema) as conn:
        return conn.execute(
            "insert into credit_notes select invoice_id, amount_cents / 10 from invoices"
            " where charged_cents is null and invoice_id % 5 = 0"
        ).rowcount


def _tell_lease(stage: Stage, resource: str, narrator: Narrator) -> None:
    with stage.connected("auditor") as conn:
        left = (
            conn.cursor(row_factory=scalar_row)
            .execute(
                "select extract(epoch from lease_ends_at - clock_timestamp())"
                " from pgfence_registry.grants where resource = %s"
                " order by fence_token desc limit 1",
                (resource,),
            )
            .fetchone()
        )
    if left is not None and left > 0:
        narrator.waiting(f"worker-b waits: the lease of worker-a runs out in {left:.1f} s")


def _last_attempts(a: WorkerProcess, *, fenced: bool) -> list[Attempt]:
    if not fenced:
        a.expect("written")
        a.expect("stopped")  # it looks at its lease before the next page: too late for this one
        return [Attempt("update", "WRITTEN", "nothing in PostgreSQL knows of the lease")]
    says = a.expect("stopped")["says"]
    attempts = [Attempt("lease.apply", says.split()[0], says.partition(": ")[2])]
    for _ in range(2):
        told = a.expect("insisted")
        attempts.append(Attempt(told["how"], told["outcome"], told["says"]))
    return attempts


def _outcome(stage: Stage, schema: str, attempts: list[Attempt]) -> Outcome:
    (totals,) = stage.ask(
        "select count(*) as invoices, count(*) filter (where charged_cents <> due_cents) as wrong,"
        " sum(due_cents)::bigint as due_cents, sum(charged_cents)::bigint as charged_cents"
        " from settlement",
        schema,
    )
    examples = stage.ask(
        "select invoice_id, customer, amount_cents, credit_cents, due_cents, charged_cents,"
        " charged_by from settlement where charged_cents <> due_cents order by 1 limit 5",
        schema,
    )
    return Outcome(
        fenced=schema == "fenced",
        resource=RESOURCES[schema],
        attempts=attempts,
        examples=examples,
        **totals,
    )


def _check(outcome: Outcome) -> None:
    """The demo proves its point or fails."""
    wanted = ["NOT_HELD", "STALE_OWNER", "NOT_ADMITTED"] if outcome.fenced else ["WRITTEN"]
    found = [attempt.outcome for attempt in outcome.attempts]
    if found != wanted or (outcome.wrong == 0) != outcome.fenced:
        raise DemoFailedError(f"{outcome.resource}: {found}, {outcome.wrong} invoices wrong")
