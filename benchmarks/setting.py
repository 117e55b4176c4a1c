"""The server, databases, tables and grants that are measured."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from pgfence import embedded
from pgfence.model.grant import operation_root
from tests import support

SCRIPTS = Path(__file__).parent / "scripts"
WORKER = "worker_a"
#: Milliseconds that the benchmark's leases last: longer than the benchmark.
TTL_MS = 3_600_000


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    #: Even, so that each way comes as often before the others as behind them.
    rounds: int = 8
    #: Of one run of pgbench.
    seconds: int = 2
    #: Segments, and verified tokens, in one round.
    segments: int = 300
    bulk_rows: int = 10_000
    #: From a release to the next owner, in one round.
    handovers: int = 100
    few_resources: int = 1_000
    many_resources: int = 1_000_000
    few_receipts: int = 10_000
    many_receipts: int = 10_000_000


#: The same for all that is compared. No checkpoint and no autovacuum comes by chance into one round
#: and not into the next.
SETTINGS: dict[str, str | int] = {
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "2GB",
    "shared_buffers": "512MB",
}
#: Bytes on disk, indexes included; and what does not depend on the sizes, WAL above all.
A_RESOURCE, A_RECEIPT, THE_REST = 1_200, 480, 3 << 30


def folder_with_room(sizes: Sizes) -> Path:
    """Where temporary files go, if there is room for the data."""
    needed = (
        sum(
            a * (few + many)
            for a, few, many in (
                (A_RESOURCE, 2 * sizes.few_resources, sizes.many_resources),
                (A_RECEIPT, 2 * sizes.few_receipts, sizes.many_receipts),
            )
        )
        + THE_REST
    )
    free = {
        folder: shutil.disk_usage(folder).free
        for folder in (tempfile.gettempdir(), "/var/tmp")  # noqa: S108
        if Path(folder).is_dir()
    }
    for folder, room in free.items():
        if room >= needed:
            return Path(folder)
    found = ", ".join(f"{folder} has {room / 1e9:.1f} GB" for folder, room in free.items())
    raise SystemExit(
        f"The data needs {needed / 1e9:.1f} GB, and {found}. Name another folder with --folder"
        " (make bench ARGS='--folder /some/where'), or measure less: --many-receipts 1000000."
    )


@contextmanager
def server(folder: Path, *, durable: bool) -> Iterator[support.TestServer]:
    """A server of our own, with its data in a new folder below `folder`.

    Unless it is `durable`, nothing waits for the disk: its time is the same for all that is
    compared, and the longer it is the smaller all differences look.
    """
    settings = SETTINGS | {"fsync": "on" if durable else "off"}
    with embedded.Server(
        support.programs_under_test(), settings=settings, parent=folder
    ) as running:
        under_test = support.TestServer(running.dsn())
        support.create_login_roles(under_test)
        yield under_test


def template(under_test: support.TestServer) -> support.Database:
    """A database with pgfence and the tables, to be copied."""
    database = support.create_guarded_database(under_test, "template", support.make_keys())
    with database.connect("dba") as conn:
        conn.execute("select pgfence.set_policy('', null, 1 << 40, %s)", [TTL_MS])
    with database.connect("billing_owner") as conn:
        conn.execute((SCRIPTS / "tables.sql").read_bytes())
    return database


def copy_of(database: support.Database, name: str) -> support.Database:
    """Another database like it."""
    copy = support.create_database(database.server, name, template=database.name)
    support.record_identity(copy)
    return copy


#: Grants that a registry process signs at one look.
A_LOOK = 100


def grant(database: support.Database, resources: Sequence[str]) -> list[str]:
    """A lease on each resource for the worker; the tokens, which the scripts find in `tokens`."""
    with database.connect(WORKER) as worker:
        ask = "select token from pgfence_registry.request(%s, %s, 'settle', %s, %s)"
        asked = [
            (f"of-{name}", name, operation_root(name, "settle", f"of-{name}", ""), TTL_MS)
            for name in resources
        ]
        with worker.pipeline():
            for request in asked:
                worker.execute(ask, request)
        for _ in range(0, len(asked), A_LOOK):
            support.sign_pending(database)
        tokens = [one(worker, ask, request) for request in asked]
    with database.connect() as conn, conn.cursor() as cursor:
        cursor.executemany(
            "insert into tokens values (%s, %s, %s)",
            [(n, *row) for n, row in enumerate(zip(resources, tokens, strict=True))],
        )
    return tokens


def fill(database: support.Database, resources: int, receipts: int) -> None:
    """So many resources, a few of which the scripts use in turn, and so many receipts."""
    used = range(1, resources + 1, max(1, resources // 1000))
    tokens = grant(database, [f"batch/{n}" for n in used])
    with database.connect(WORKER) as worker:
        for token in tokens:
            worker.execute("select pgfence.fenced_apply(%s, 1, '')", [token])
    conn = database.connect()
    with psycopg.ClientCursor(conn) as cursor:
        cursor.execute("set role pgfence_owner")
        for script in ("fill_resources.sql", "fill_receipts.sql"):
            sizes = {"resources": resources, "receipts": receipts}
            cursor.execute((SCRIPTS / script).read_bytes(), sizes)
        cursor.execute("reset role")
    conn.execute("analyze")
    conn.execute("checkpoint")


def one(conn: psycopg.Connection[Any], query: str, parameters: Sequence[Any] = ()) -> Any:
    """The single value of a query."""
    row = conn.execute(query.encode(), parameters).fetchone()
    assert row is not None  # noqa: S101 - every query here has a row
    return row[0]
