"""Protected tables for tests, and a worker that gets its resources admitted to write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tests.support import Database, Keys, wait_until
from tests.workers import Worker

DAY, NEXT_DAY, LATER_DAY = "2026-07-19", "2026-07-20", "2026-07-21"
BATCH, NEXT_BATCH, LATER_BATCH = (f"invoice-batch/{d}" for d in (DAY, NEXT_DAY, LATER_DAY))
TEMPLATE = "invoice-batch/{batch_date}"

_COLUMNS = "(id integer not null, batch_date date not null, amount numeric not null)"


def run(conn: psycopg.Connection[Any], statement: str) -> psycopg.Cursor[Any]:
    """Run what a test put together."""
    return conn.execute(statement)


@contextmanager
def refused(sqlstate: str = "PF201") -> Iterator[psycopg.Error]:
    """The block ends in this refusal; the error is filled in for the caller to look at."""
    seen = psycopg.Error()
    with pytest.raises(psycopg.Error) as caught:
        yield seen
    assert caught.value.sqlstate == sqlstate, caught.value
    seen.__dict__.update(caught.value.__dict__)
    seen.args = caught.value.args


@dataclass
class Writer:
    """A worker who holds whatever resource it is asked to write."""

    worker: Worker
    #: Of each resource that it holds.
    tokens: dict[str, str] = field(default_factory=dict)

    @classmethod
    def login(
        cls,
        database: Database,
        keys: Keys,
        role: str = "worker_a",
        *,
        tokens: Mapping[str, str] | None = None,
    ) -> Writer:
        """tokens: what it holds already."""
        return cls(Worker.login(database, keys, role), dict(tokens or {}))

    @property
    def database(self) -> Database:
        return self.worker.database

    @property
    def conn(self) -> psycopg.Connection[Any]:
        return self.worker.conn

    def admit(self, resource: str) -> None:
        """fenced_apply with the next segment of the resource, in the transaction that is open."""
        if resource not in self.tokens:
            database, keys = self.worker.database, self.worker.keys
            with psycopg.connect(database.dsn(self.conn.info.user), autocommit=True) as other:
                # For a day: a module may share it, and nobody renews it.
                held = Worker(database, keys, other).acquire(resource, ttl_ms=86_400_000)
                self.tokens[resource] = held.token
        position = self.worker.call("select * from pgfence.position(%s)", [resource])
        verdict = self.worker.apply(self.tokens[resource], position.last_segment + 1)
        assert verdict.verdict == "ACCEPTED", verdict

    @contextmanager
    def admitted(self, *resources: str) -> Iterator[psycopg.Connection[Any]]:
        """A transaction in which the resources are admitted; commits."""
        with self.worker.transaction():
            for resource in resources:
                self.admit(resource)
            yield self.conn


def make_table(owner: psycopg.Connection[Any], name: str, kind: str) -> None:
    """A table of invoices, `plain` or `partitioned` (a partition a day), open to pgfence_app."""
    if kind == "plain":
        run(owner, f"create table {name} {_COLUMNS}")
    else:
        run(owner, f"create table {name} {_COLUMNS} partition by list (batch_date)")
        for number, day in enumerate((DAY, NEXT_DAY)):
            run(owner, f"create table {name}_{number} partition of {name} for values in ('{day}')")
            run(owner, f"grant select, insert, update, delete on {name}_{number} to pgfence_app")
    run(owner, f"alter table {name} add primary key (id, batch_date)")
    run(owner, f"grant select, insert, update, delete on {name} to pgfence_app")


def attach_later(owner: psycopg.Connection[Any], name: str) -> None:
    """The partition of LATER_DAY, made for the purpose after protect."""
    run(owner, f"create table {name}_later partition of {name} for values in ('{LATER_DAY}')")
    run(owner, f"grant select, insert, update, delete on {name}_later to pgfence_app")


def protect(owner: psycopg.Connection[Any], table: str, template: str = TEMPLATE) -> None:
    owner.execute("select pgfence.protect(%s, %s)", [table, template])


def drop_subscription(
    subscriber: psycopg.Connection[Any], origin: psycopg.Connection[Any], name: str
) -> None:
    """End a subscription of this server to itself, and drop every slot in the origin's database.

    DROP SUBSCRIPTION waits at the origin for a copy that is under way, and a copy that begins waits
    for every transaction of its server. Where both are one server each may wait for the other, for
    ever, and nothing finds the deadlock: so nothing may be under way.
    """
    run(subscriber, f"alter subscription {name} disable")
    run(subscriber, f"alter subscription {name} set (slot_name = none)")
    workers = (
        "select from pg_stat_activity where datname = current_database()"
        " and backend_type like 'logical replication%worker'"
    )
    slots = "from pg_replication_slots where database = current_database()"
    wait_until(
        lambda: (
            run(subscriber, workers).rowcount == 0
            and run(origin, f"select {slots} and active").rowcount == 0
        ),
        "nothing is copied or applied",
    )
    run(subscriber, f"drop subscription {name}")
    run(origin, f"select pg_drop_replication_slot(slot_name) {slots}")


def open_invoices(database: Database) -> None:
    """`invoices` of another shape: ten open ones of DAY behind the guard, for worker_a and _b."""
    owner = database.connect("billing_owner")
    owner.execute(
        "create table invoices (id int primary key, batch date not null, state text not null)"
    )
    owner.execute(
        "insert into invoices select i, '2026-07-19', 'open' from generate_series(1, 10) as i"
    )
    owner.execute("grant select, insert, update, delete on invoices to worker_a, worker_b")
    owner.execute("select pgfence.protect('invoices', 'invoice-batch/{batch}')")
