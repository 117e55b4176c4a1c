"""The measurements. Each measures what it compares in turn, round by round, and gives figures."""

from __future__ import annotations

import itertools
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import pgfence
from benchmarks import setting
from benchmarks.figures import Figure
from benchmarks.setting import SCRIPTS, WORKER, Sizes, one
from pgfence import embedded, tokens
from pgfence.model.grant import Grant
from tests import support
from tests.registry import registry

Figures = dict[str, Figure]
Say = Callable[[str], None]
SESSIONS = (1, 8)
PAYLOAD = '{"page": 1}'
APPLY = "select * from pgfence.fenced_apply(%s, %s, %s)"
UPDATE = "update invoices set settled = settled + 1 where id = %s"
#: The scripts that are compared.
WAYS = ("plain", "hand", "apply", "call")


def in_turn(
    what: str, unit: str, ways: Mapping[str, Callable[[], float]], rounds: int, say: Say
) -> dict[str, list[float]]:
    """What each way gave in each round; A B C, C B A, ...: a drift meets all alike."""
    measured: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in list(ways) if number % 2 == 0 else reversed(list(ways)):
            measured[way].append(ways[way]())
            say(f"{what} {number + 1}/{rounds}  {way:<10} {measured[way][-1]:>9,.1f} {unit}")
    return measured


def throughput(template: support.Database, sizes: Sizes, say: Say) -> Figures:
    """One row a segment, with and without the fence, from one session and from eight."""
    database = setting.copy_of(template, "throughput")
    setting.grant(database, [f"batch/{n}" for n in range(max(SESSIONS))])

    def way(script: str, sessions: int) -> Callable[[], float]:
        return lambda: rate(database, script, sessions, sizes.seconds)

    ways = {f"{script}_c{count}": way(script, count) for count in SESSIONS for script in WAYS}
    rates = in_turn("throughput", "a second", ways, sizes.rounds, say)
    with database.connect() as conn:
        written = one(conn, "select sum(settled) from invoices")
        receipts = one(conn, "select count(*) from pgfence.receipts")
    if written != receipts:
        raise SystemExit(f"{receipts} segments were accepted, and {written} rows written")
    ratios = {
        f"{script}_vs_{base}_c{count}": Figure.ratio(
            rates[f"{script}_c{count}"], rates[f"{base}_c{count}"]
        )
        for count in SESSIONS
        for script in ("apply", "call")
        for base in ("hand", "plain")
    }
    return ratios | {f"{name}_per_second": Figure.of(rounds) for name, rounds in rates.items()}


def wal(template: support.Database, sizes: Sizes, say: Say) -> Figures:
    """Bytes of WAL that a segment of one row writes."""
    database = setting.copy_of(template, "wal")
    setting.grant(database, ["batch/0"])
    conn = database.connect()
    count = sizes.segments

    def way(script: str) -> Callable[[], float]:
        def written() -> float:
            before = one(conn, "select pg_current_wal_insert_lsn()")
            pgbench(database, script, 1, f"--transactions={count}")
            return float(one(conn, "select pg_current_wal_insert_lsn() - %s", [before])) / count

        return written

    ways = {script: way(script) for script in WAYS}
    in_turn("WAL, to warm up", "bytes", ways, 1, say)
    bytes_each = in_turn("WAL", "bytes", ways, sizes.rounds, say)
    return {f"{name}_wal_bytes": Figure.of(rounds) for name, rounds in bytes_each.items()}


def functions(template: support.Database, sizes: Sizes, say: Say) -> Figures:
    """Microseconds that each function called for a segment takes by itself, with the SQL in it.

    Being measured makes each a little slower.
    """
    database = setting.copy_of(template, "functions")
    setting.grant(database, ["batch/0"])
    conn = database.connect()
    conn.execute("alter database functions set track_functions = 'pl'")
    taken: dict[str, list[float]] = {}
    for number in range(sizes.rounds):
        conn.execute("select pg_stat_reset()")
        pgbench(database, "apply", 1, f"--transactions={10 * sizes.segments}")
        support.wait_until(
            lambda: one(
                conn, "select count(*) = 0 from pg_stat_activity where usename = %s", [WORKER]
            ),
            "the session is gone, and has reported what it did",
        )
        rows = conn.execute(
            "select f.funcname, 1000 * f.self_time / a.calls"
            "  from pg_stat_user_functions as f, pg_stat_user_functions as a"
            " where a.funcname = 'fenced_apply' and f.calls >= a.calls"
        ).fetchall()
        for name, microseconds in rows:
            taken.setdefault(name, []).append(microseconds)
        say(f"functions {number + 1}/{sizes.rounds}")
    order = sorted(taken, key=lambda name: -statistics.median(taken[name]))
    return {f"{name}_us": Figure.of(taken[name]) for name in order}


def client(template: support.Database, sizes: Sizes, say: Say) -> Figures:
    """`lease.apply` against the same statements by hand on a psycopg connection.

    By hand in as few round trips as the client makes (BEGIN, look and fenced_apply together), and
    without the client's look in four, as one would write it at first.
    """
    database = setting.copy_of(template, "client")
    bare = database.connect(WORKER, autocommit=False)  # BEGIN goes out with what comes first
    one_way, other_way = (
        support.issue(database, WORKER, f"batch/{n}", ttl_ms=setting.TTL_MS) for n in (0, 1)
    )
    one_number, other_number = itertools.count(1), itertools.count(1)

    def by_sql() -> None:
        with bare.pipeline():
            look = bare.execute("select * from pgfence_registry.look(%s)", [one_way.lease])
            apply = bare.execute(APPLY, [one_way.token, next(one_number), PAYLOAD])
        look.fetchone()
        apply.fetchone()
        bare.execute(UPDATE, [0])
        bare.commit()

    def one_by_one() -> None:
        bare.execute(APPLY, [other_way.token, next(other_number), PAYLOAD]).fetchone()
        bare.execute(UPDATE, [1])
        bare.commit()

    with (
        registry(database, support.make_keys()),
        pgfence.connect(database.dsn(WORKER)) as fence,
        fence.hold("batch/2", operation="settle", ttl=setting.TTL_MS / 1000) as lease,
    ):

        def by_client() -> None:
            lease.apply({"page": 1}, lambda tx: tx.execute(UPDATE, [2]))

        def way(segment: Callable[[], None]) -> Callable[[], float]:
            seconds(segment, 20)  # plans, caches, prepared statements
            return lambda: sizes.segments / seconds(segment, sizes.segments)

        ways = {"sql": way(by_sql), "one_by_one": way(one_by_one), "client": way(by_client)}
        rates = in_turn("Python", "a second", ways, sizes.rounds, say)
    return {
        "client_vs_sql": Figure.ratio(rates["client"], rates["sql"]),
        "client_vs_one_by_one": Figure.ratio(rates["client"], rates["one_by_one"]),
    } | {f"python_{way}_per_second": Figure.of(rounds) for way, rounds in rates.items()}


def verification(template: support.Database, sizes: Sizes, say: Say) -> Figures:
    """Milliseconds to verify a grant that the database has not seen, the round trip included."""
    database = setting.copy_of(template, "verification")
    setting.grant(database, ["batch/0"])
    conn = database.connect()
    known = Grant.parse(one(conn, "select message from pgfence_registry.grants").encode())
    key = support.make_keys().grant
    check = "select (pgfence._authenticate(%s)).refused is null"
    fences = itertools.count(2)

    def verify() -> float:
        message = replace(known, fence_token=next(fences)).encode()
        token = tokens.sign(message, Grant.SCHEMA, key)
        good = []
        took = seconds(lambda: good.append(one(conn, check, [token])))
        if good != [True]:
            raise SystemExit("a genuine grant was refused")
        return took * 1000

    def typical() -> float:
        return statistics.median(verify() for _ in range(sizes.segments))

    rounds = in_turn("verification", "ms", {"new grant": typical}, sizes.rounds, say)
    return {"verify_ms": Figure.of(rounds["new grant"])}


def bulk(template: support.Database, sizes: Sizes, say: Say) -> Figures:
    """A segment that updates many rows, against the same UPDATE of a table without a guard."""
    database = setting.copy_of(template, "bulk")
    token = support.issue(database, WORKER, "bulk/1", ttl_ms=setting.TTL_MS).token
    owner, worker = database.connect("billing_owner"), database.connect(WORKER)
    owner.execute(
        "insert into free_bulk (id, batch) select n, 1 from generate_series(1, %s) as n",
        [sizes.bulk_rows],
    )
    owner.execute("insert into bulk select * from free_bulk")
    owner.execute("select pgfence.protect('bulk', 'bulk/{batch}')")
    numbers = itertools.count(1)

    def free() -> None:
        with worker.transaction():
            worker.execute("update free_bulk set settled = settled + 1 where batch = 1")

    def guarded() -> None:
        with worker.transaction():
            worker.execute(APPLY, [token, next(numbers), PAYLOAD])
            worker.execute("update bulk set settled = settled + 1 where batch = 1")

    def way(segment: Callable[[], None]) -> Callable[[], float]:
        def milliseconds() -> float:
            # Each time into space that VACUUM has freed, and into as much of it.
            owner.execute("vacuum (analyze) free_bulk, bulk")
            return seconds(segment) * 1000

        return milliseconds

    ways = {"free": way(free), "guarded": way(guarded)}
    in_turn("bulk, to warm up", "ms", ways, 2, say)
    measured = in_turn("bulk", "ms", ways, 3 * sizes.rounds, say)
    return {"bulk_guarded_vs_unguarded": Figure.ratio(measured["guarded"], measured["free"])} | {
        f"bulk_{way}_ms": Figure.of(rounds) for way, rounds in measured.items()
    }


def scale(template: support.Database, sizes: Sizes, say: Say) -> Figures:
    """Time of `fenced_apply` in databases that hold much, against one that holds little."""
    contents = {
        "small": (sizes.few_resources, sizes.few_receipts),
        "resources": (sizes.many_resources, sizes.few_receipts),
        "receipts": (sizes.few_resources, sizes.many_receipts),
    }

    def way(name: str, resources: int, receipts: int) -> Callable[[], float]:
        say(f"scale: filling a database with {resources:,} resources and {receipts:,} receipts")
        database = setting.copy_of(template, name)
        setting.fill(database, resources, receipts)
        return lambda: 1e6 / rate(database, "scale", 1, sizes.seconds)

    ways = {name: way(name, *content) for name, content in contents.items()}
    measured = in_turn("scale", "µs", ways, sizes.rounds, say)
    return {
        f"scale_{name}": Figure.ratio(measured[name], measured["small"])
        for name in ("resources", "receipts")
    } | {f"scale_{name}_us": Figure.of(rounds) for name, rounds in measured.items()}


def rate(database: support.Database, script: str, sessions: int, seconds: int) -> float:
    """Transactions a second, of so many seconds.

    A second more comes first, and is left out: new sessions read the catalog and make their plans,
    for pgfence's functions more of them, and a pool of sessions does that once a day.
    """
    output = pgbench(database, script, sessions, "--progress=1", f"--time={seconds + 1}")
    each_second = re.findall(r"^progress: [0-9.]+ s, ([0-9.]+) tps", output, re.MULTILINE)
    in_all = re.findall(r"^tps = ([0-9.]+)", output, re.MULTILINE)
    # The run may be over before the last second is reported.
    return statistics.mean(float(tps) for tps in each_second[1:] or in_all)


def pgbench(database: support.Database, script: str, sessions: int, *amount: str) -> str:
    """What pgbench reports after a script was run for so long, or so often."""
    result = subprocess.run(
        [
            str(embedded.wheel_bin_dir() / "pgbench"),
            *("--no-vacuum", "--protocol=prepared", "--define=n=-1", *amount),
            *(f"--client={sessions}", f"--jobs={min(sessions, 2)}"),
            *(f"--file={SCRIPTS / script}.sql", database.dsn(WORKER)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise SystemExit(result.stdout)
    return result.stdout


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """What it takes to do something so many times."""
    started = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - started
