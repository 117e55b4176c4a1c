"""Workers that speak plain SQL, as a client in any language would, and tokens made to measure."""

from __future__ import annotations

import itertools
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from pgfence import tokens
from pgfence.model.grant import Grant
from pgfence.model.status import StatusProof
from tests.support import (
    AUDIENCE,
    Database,
    Keys,
    sign_pending,
    wait_until,
)

_request_ids = itertools.count(1)

_APPLY = "select * from pgfence.fenced_apply(%s, %s, %s, %s)"
_REQUEST = """
    select * from pgfence_registry.request(
        %(request_id)s, %(resource)s, %(operation)s,
        pgfence.operation_root(%(resource)s, %(operation)s, %(request_id)s, ''),
        %(ttl_ms)s, %(continues_root)s)
"""


@dataclass
class Worker:
    """A worker's session: it asks, applies and releases by calling functions."""

    database: Database
    keys: Keys
    conn: psycopg.Connection[Any]
    #: A session of the registry's that stays to sign; else there is a new one for each grant.
    signer: psycopg.Connection[Any] | None = None

    @classmethod
    def login(cls, database: Database, keys: Keys, role: str, **parameters: Any) -> Worker:
        return cls(database, keys, database.connect(role, **parameters))

    def call(self, query: str, parameters: Any = ()) -> Any:
        """The one row that the query answers, as a named tuple; None if there is none."""
        return self.conn.cursor(row_factory=namedtuple_row).execute(query, parameters).fetchone()

    def ask(
        self,
        resource: str,
        request_id: str | None = None,
        *,
        ttl_ms: int = 600_000,
        operation: str = "settle",
        continues_root: str = "",
    ) -> Any:
        """One call of request(), answered as it is: WAIT, SIGNING, HELD, …"""
        return self.call(
            _REQUEST,
            {
                "request_id": request_id or f"request-{next(_request_ids)}",
                "resource": resource,
                "operation": operation,
                "ttl_ms": ttl_ms,
                "continues_root": continues_root,
            },
        )

    def acquire(self, resource: str, request_id: str | None = None, **arguments: Any) -> Any:
        """Ask, let the registry sign, ask again: HELD with a token (or WAIT)."""
        answer = self.ask(resource, request_id, **arguments)
        if answer.state == "SIGNING":
            sign_pending(self.database, self.signer)
            answer = self.ask(resource, answer.request_id, **arguments)
        return answer

    def apply(
        self, token: str, segment: int, payload: str = "payload", status: str | None = None
    ) -> Any:
        return self.call(_APPLY, [token, segment, payload, status])

    def advance(self, token: str, status: str | None = None) -> Any:
        return self.call("select * from pgfence.advance(%s, %s)", [token, status])

    def renew(self, lease: str) -> Any:
        return self.call("select * from pgfence_registry.renew(%s)", [lease])

    def release(self, lease: str) -> Any:
        return self.call("select * from pgfence_registry.release(%s)", [lease])

    def look(self, lease: str) -> Any:
        return self.call("select * from pgfence_registry.look(%s)", [lease])

    @contextmanager
    def transaction(self, isolation: str = "read committed") -> Iterator[None]:
        """A transaction in an isolation level; commits, or rolls back on an exception."""
        self.conn.execute(f"begin isolation level {isolation}")
        try:
            yield
        except BaseException:
            self.conn.execute("rollback")
            raise
        self.conn.execute("commit")

    @property
    def pid(self) -> int:
        return self.conn.info.backend_pid


def sign_in_one_session(database: Database, workers: Iterable[Worker]) -> None:
    """For workers that get thousands of grants: a new session for each would take the most time."""
    signer = database.connect("registry")
    for worker in workers:
        worker.signer = signer


def grant_of(token: str) -> Grant:
    """The claims of a grant, unverified."""
    return Grant.parse(_message(token))


def proof_of(token: str) -> StatusProof:
    """The claims of a status proof, unverified."""
    return StatusProof.parse(_message(token))


def _message(token: str) -> bytes:
    body = token.split(".")[2]
    return urlsafe_b64decode(body + "=" * (-len(body) % 4))[:-64]


def forge(grant: Grant, keys: Keys, **changes: Any) -> str:
    """A token that the registry's key really signed, with claims of the test's choice."""
    return tokens.sign(replace(grant, **changes).encode(), Grant.SCHEMA, keys.grant)


def status_proof(
    digest: str, keys: Keys, issued_at: int, *, valid_ms: int = 30_000, **changes: Any
) -> str:
    """A signed status proof. issued_at: microseconds on the registry's clock."""
    claims: dict[str, Any] = {
        "audience": AUDIENCE,
        "grant_digest": digest,
        "revision": 1,
        "issuer_epoch": 1,
        "issued_at": issued_at,
        "valid_until": issued_at + valid_ms * 1000,
    }
    claims.update(changes)
    return tokens.sign(StatusProof(**claims).encode(), StatusProof.SCHEMA, keys.status)


def fence_row(database: Database, resource: str) -> Any:
    """The fence row as the superuser sees it, as a named tuple."""
    with psycopg.connect(database.dsn(), autocommit=True) as conn:
        return (
            conn.cursor(row_factory=namedtuple_row)
            .execute("select * from pgfence.fences where resource = %s", [resource])
            .fetchone()
        )


def as_owner(database: Database, query: str | sql.Composed, parameters: Any = None) -> None:
    """One statement as pgfence_owner: what a test must set up that no function does."""
    with psycopg.connect(database.dsn()) as conn:
        conn.execute("set local role pgfence_owner")
        conn.execute(query, parameters)


def no_timeouts(worker: Worker) -> None:
    """What an obstinate client does after its admission: unset what the server set (R20)."""
    worker.conn.execute("set local idle_in_transaction_session_timeout = 0")
    if worker.conn.info.server_version >= 170000:
        worker.conn.execute("set local transaction_timeout = 0")


def end_lease(database: Database, lease: str, after: float = 0) -> None:
    """Let a lease end now, or so many seconds from now, on the registry's clock."""
    as_owner(
        database,
        "update pgfence_registry.grants"
        " set lease_ends_at = clock_timestamp() + %s * interval '1 second' where lease = %s",
        [after, lease],
    )


def lease_is_over(database: Database, lease: str) -> bool:
    """Whether the registry's clock has passed the end of a lease."""
    row = database.watcher.execute(
        "select clock_timestamp() > lease_ends_at from pgfence_registry.grants where lease = %s",
        [lease],
    ).fetchone()
    return row is not None and row[0]


def begin_before_the_end(
    worker: Worker, lease: str, steps: Callable[[], object], level: str = "read committed"
) -> None:
    """Begin a transaction and take its first steps, shortly before the lease ends.

    How shortly is for the machine to say: where the lease ended before the steps were taken, they
    are taken again with more time.
    """
    role = worker.conn.info.user
    for seconds in (0.3, 1, 3, 10, 30):
        end_lease(worker.database, lease, seconds)
        try:
            worker.conn.execute(f"begin isolation level {level}")
            steps()
        except (AssertionError, psycopg.Error):
            if seconds == 30 or not lease_is_over(worker.database, lease):
                raise
        else:
            return
        if worker.conn.closed:  # the server has ended the session
            worker.conn = worker.database.connect(role)
        else:
            worker.conn.execute("rollback")


def in_background(function: Callable[[], Any]) -> Future[Any]:
    """Run one blocking call in a thread of its own."""
    executor = ThreadPoolExecutor(max_workers=1)
    future = executor.submit(function)
    executor.shutdown(wait=False)
    return future


def waits_for_a_lock(observer: psycopg.Connection[Any], pid: int, call: Future[Any]) -> bool:
    """Return when the call, which backend `pid` runs, waits for a lock or has ended: True or False.

    observer: a connection in autocommit that takes no part in the race.
    """
    waits = "select pg_blocking_pids(%s) <> '{}'"
    wait_until(
        lambda: call.done() or observer.execute(waits, [pid]).fetchone() == (True,),
        "the call waits for a lock",
    )
    return not call.done()


def age_receipts(
    database: Database, resource: str, *, hours: float = 2, last: tuple[int, int] | None = None
) -> None:
    """Make receipts older, up to the one with this fence and segment, in a chain that verifies."""
    fence, segment = last or (2**53, 1)
    as_owner(
        database,
        sql.SQL("""
        do $$
        declare
            v_receipt pgfence.receipts;
            v_resource constant text := {resource};
            v_previous bytea := coalesce((
                select s.last_digest from pgfence.pruned_stretches as s
                 where s.resource = v_resource
                 order by s.from_fence desc, s.from_segment desc limit 1), '');
        begin
            for v_receipt in
                select r.* from pgfence.receipts as r where r.resource = v_resource
                 order by r.fence_token, r.segment_seq
            loop
                if (v_receipt.fence_token, v_receipt.segment_seq) <= ({fence}, {segment}) then
                    v_receipt.accepted_at := v_receipt.accepted_at - {hours} * interval '1 hour';
                end if;
                update pgfence.receipts as r
                   set accepted_at = v_receipt.accepted_at, previous_digest = v_previous,
                       digest = pgfence._receipt_digest(
                           v_previous, v_resource, r.fence_token, r.segment_seq, r.operation_root,
                           r.grant_digest, r.payload_digest, v_receipt.accepted_at, r.session_role)
                 where r.resource = v_resource and r.fence_token = v_receipt.fence_token
                   and r.segment_seq = v_receipt.segment_seq
                returning r.digest into v_previous;
            end loop;
            update pgfence.fences as f set last_digest = v_previous where f.resource = v_resource;
        end
        $$
        """).format(
            resource=sql.Literal(resource),
            fence=sql.Literal(fence),
            segment=sql.Literal(segment),
            hours=sql.Literal(hours),
        ),
    )
