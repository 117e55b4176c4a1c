"""What a fenced write costs, next to the same write by hand and without any fence.

    python -m benchmarks.fenced_apply [SECONDS]

pgbench runs each way with 1 and with 8 sessions, each session on a resource of its own, on the
embedded PostgreSQL, and the best of three rounds counts. Transactions do not wait for the disk
(synchronous_commit = off): what is compared is the work, which a slow disk would hide.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pgfence import embedded
from tests import support

SESSIONS = (1, 8)
ROUNDS = 3

# Scripts of pgbench; :n is the number of the segment.
PLAIN = """
begin;
update open_invoices set settled = settled + 1 where batch = :client_id;
commit;
"""
BY_HAND = """
\\set n :n + 1
begin;
update hand_fences set last_segment = :n
 where batch = :client_id and fence = 1 and last_segment = :n - 1;
insert into hand_receipts (batch, fence, segment, payload) values (:client_id, 1, :n, '{}');
update open_invoices set settled = settled + 1 where batch = :client_id;
commit;
"""
FENCED = """
\\if :n = 0
select token from grants where session = :client_id \\gset
\\endif
\\set n :n + 1
begin;
select verdict from pgfence.require(pgfence.fenced_apply(:token, :n, '{}'));
update invoices set settled = settled + 1 where batch = :client_id;
commit;
"""
WAYS = {
    "plain UPDATE, no fence": PLAIN,
    "fence and receipt by hand": BY_HAND,
    "fenced_apply, guarded table": FENCED,
}

TABLES = """
create table open_invoices (batch integer primary key, settled bigint not null default 0);
create table hand_fences (batch integer primary key, fence bigint, last_segment bigint);
create table hand_receipts (
    batch integer, fence bigint, segment bigint, payload text,
    accepted_at timestamptz not null default clock_timestamp(),
    primary key (batch, fence, segment));
create table invoices (batch integer primary key, settled bigint not null default 0);
create table grants (session integer primary key, token text);
insert into open_invoices select n from generate_series(0, 7) as n;
insert into hand_fences select n, 1, 0 from generate_series(0, 7) as n;
insert into invoices select n from generate_series(0, 7) as n;
grant select, insert, update on all tables in schema public to worker_a;
select pgfence.protect('invoices', 'batch/{batch}');
"""


def prepare(database: support.Database) -> None:
    """Tables, and a grant for each session that lasts longer than the run."""
    with database.connect("billing_owner") as conn:
        conn.execute(TABLES)
    with database.connect("dba") as conn:
        conn.execute("select pgfence.set_policy('batch/', null, 1 << 40, 3600000)")


def new_grants(database: support.Database) -> None:
    """Every run begins at segment 1 of fresh grants."""
    with database.connect() as conn:
        conn.execute("update hand_fences set last_segment = 0; truncate hand_receipts, grants")
        for session in range(max(SESSIONS)):
            resource = f"batch/{session}"
            with database.connect("worker_a") as worker:
                worker.execute(
                    "select pgfence_registry.release(g.lease)"
                    " from (select %s::text as lease) as g where g.lease is not null",
                    [_leases.pop(resource, None)],
                )
            issued = support.issue(database, "worker_a", resource, ttl_ms=3_600_000)
            _leases[resource] = issued.lease
            conn.execute("insert into grants values (%s, %s)", [session, issued.token])


_leases: dict[str, str] = {}


def run(database: support.Database, script: Path, sessions: int, seconds: int) -> float:
    """Transactions a second."""
    new_grants(database)
    result = subprocess.run(
        [
            embedded.wheel_bin_dir() / "pgbench",
            *("--no-vacuum", "--protocol=prepared", "--define=n=0"),
            *(f"--file={script}", f"--client={sessions}", f"--time={seconds}"),
            database.dsn("worker_a"),
        ],
        env=os.environ | {"PGOPTIONS": "-c synchronous_commit=off"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"^tps = ([0-9.]+)", result.stdout, re.MULTILINE)
    if result.returncode or not found:
        raise SystemExit(result.stdout + result.stderr)
    return float(found[1])


def main() -> None:
    """Print a table of transactions a second."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with embedded.Server() as server, tempfile.TemporaryDirectory() as folder:
        under_test = support.TestServer(server.dsn())
        support.create_login_roles(under_test)
        database = support.create_database(under_test, "bench")
        support.install_from_manifest(database)
        support.configure(database, support.make_keys())
        prepare(database)
        best: dict[tuple[str, int], float] = {}
        for _ in range(ROUNDS):
            for sessions in SESSIONS:
                for name, text in WAYS.items():
                    script = Path(folder, "script.sql")
                    script.write_text(text)
                    tps = run(database, script, sessions, seconds)
                    best[name, sessions] = max(tps, best.get((name, sessions), 0))
        database.drop()
    print(f"{'transactions a second':<28} {'1 session':>12} {'8 sessions':>12}   of the second row")
    for name in WAYS:
        one, eight = (best[name, sessions] for sessions in SESSIONS)
        ratios = [best[name, s] / best["fence and receipt by hand", s] for s in SESSIONS]
        print(f"{name:<28} {one:>12.0f} {eight:>12.0f}   {ratios[0]:.2f}  {ratios[1]:.2f}")


if __name__ == "__main__":
    main()
