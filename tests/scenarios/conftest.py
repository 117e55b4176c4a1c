"""What the stories happen to: results that a worker writes, and servers that fail over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from tests.coordinators.conftest import (  # noqa: F401 - fixtures
    coordinate,
    running_servers,
)
from tests.faults.failover.conftest import (  # noqa: F401 - fixtures
    image,
    primary,
    servers,
    standby,
)
from tests.support import Database, Keys
from tests.workers import Worker

RESOURCE = "job/nightly"


@dataclass(frozen=True)
class Results:
    """A guarded table with one row a resource: what it says, and who said it."""

    database: Database
    keys: Keys

    def worker(self, role: str) -> Worker:
        """A new session of a worker; any number may have the same role."""
        return Worker.login(self.database, self.keys, role)

    def write(self, worker: Worker, token: str, segment: int, value: str) -> str:
        """One segment: fenced_apply, and the row if it was accepted. The verdict."""
        with worker.transaction():
            verdict = str(worker.apply(token, segment, value).verdict)
            if verdict == "ACCEPTED":
                self.write_anyway(worker, value)
        return verdict

    def write_anyway(self, worker: Worker, value: str) -> None:
        """The row alone, as somebody writes who has looked at a lock and believes it."""
        worker.conn.execute(
            "insert into results values (%s, %s) on conflict (resource)"
            " do update set value = excluded.value, written_by = default",
            [RESOURCE, value],
        )

    def rows(self) -> list[tuple[str, str]]:
        """What the row says, and the role that wrote it."""
        return self._all("select value, written_by from results")

    def receipts(self) -> list[tuple[int, int]]:
        """Fence token and segment of each receipt, in the order of the chain."""
        return self._all(
            "select fence_token, segment_seq from pgfence.receipts"
            " order by fence_token, segment_seq"
        )

    def refusals(self) -> list[tuple[str, str]]:
        """Verdict and role of each kind of refusal."""
        return self._all(
            "select verdict, session_role from pgfence.refusals"
            " where occurrences > 0 order by first_at"
        )

    def fences(self) -> list[int]:
        """Every fence token that was ever minted, in the order of minting."""
        return [
            fence
            for (fence,) in self._all(
                "select fence_token from pgfence_registry.grants order by granted_at"
            )
        ]

    def _all(self, query: str) -> list[Any]:
        with psycopg.connect(self.database.dsn(), autocommit=True) as conn:
            return conn.execute(query.encode()).fetchall()


@pytest.fixture
def results(database: Database, keys: Keys) -> Results:
    owner = database.connect("billing_owner")
    owner.execute(
        "create table results (resource text primary key, value text not null,"
        " written_by text not null default session_user)"
    )
    owner.execute("grant select, insert, update on results to pgfence_app")
    owner.execute("select pgfence.protect('results', '{resource}')")
    return Results(database, keys)
