"""Every attempt of docs/security.md, as the application's role, gets the answer of the page."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from psycopg import sql

from pgfence import tokens
from pgfence.model.grant import Grant
from tests.guarded import BATCH, DAY, NEXT_BATCH, make_table, protect, run
from tests.support import Database, Keys, copied
from tests.workers import Worker, forge, grant_of, status_proof

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
ATTACKER = "worker_b"


@dataclass(frozen=True)
class Attempt:
    """SQL of the page and the answer of its last statement: SQLSTATE, verdict, or "nothing"."""

    group: str
    title: str
    statements: tuple[str, ...]
    answer: str


def attempts() -> Iterator[Attempt]:
    page = PAGE.read_text(encoding="utf-8")
    for group, code in re.findall(r"^### (.+?)$.*?^```sql\n(.*?)^```$", page, re.M | re.S):
        for block in code.strip().split("\n\n"):
            title, _, text = block.partition("\n")
            text, _, answer = text.rpartition(" --> ")
            yield Attempt(
                group,
                title.removeprefix("-- "),
                tuple(re.split(r"(?<=;)\n", text)),
                answer,
            )


ATTEMPTS = list(attempts())
GROUPS = list(dict.fromkeys(attempt.group for attempt in ATTEMPTS))
WRITING, PRETENDING, GRANTS, TABLES, FUNCTIONS, STOPPING = GROUPS


def of(*groups: str) -> pytest.MarkDecorator:
    chosen = [attempt for attempt in ATTEMPTS if attempt.group in groups]
    return pytest.mark.parametrize("attempt", chosen, ids=[f"{a.group}: {a.title}" for a in chosen])


@dataclass(frozen=True)
class Scene:
    """The database of the page, and what the attacker has."""

    database: Database
    variables: dict[str, str]
    owner: Worker

    def perform(
        self, conn: psycopg.Connection[Any], attempt: Attempt, **variables: str
    ) -> tuple[str, int]:
        """Run it; the answer of its last statement, and how many rows that touched."""
        known = self.variables | variables
        *first, last = [
            re.sub(r":'(\w+)'", lambda m: sql.Literal(known[m[1]]).as_string(conn), statement)
            for statement in attempt.statements
        ]
        for statement in first:
            run(conn, statement)
        try:
            cursor = run(conn, last)
            row = cursor.fetchone() if cursor.description else None
        except psycopg.Error as error:
            return str(error.sqlstate), 0
        return (str(row[0]) if row else "nothing"), cursor.rowcount

    def state(self) -> dict[str, Any]:
        """All that no attempt may change."""
        with psycopg.connect(self.database.dsn()) as conn:
            return {query: conn.execute(query).fetchall() for query in STATE}


def rows_of(table: str) -> str:
    return f"select id, batch_date::text, amount from {table} order by 1, 2"


STATE = (
    rows_of("public.invoices"),
    "select resource, highest_fence, issued_fence, operation_root, last_segment, receipt_count,"
    " last_digest, current_lease, paused_because from pgfence.fences order by 1",
    "select * from pgfence.receipts order by resource, fence_token, segment_seq",
    "select * from pgfence.operations order by resource, fence_token",
    "select * from pgfence_registry.grants order by lease",
    "select * from pgfence.configuration",
    "select * from pgfence.trust_bundles",
    "select kid, purpose from pgfence.trust_keys order by 1, 2",
    "select * from pgfence.policies",
    "select * from pgfence.workload_roles order by 1, 2",
    "select * from pgfence.protected_tables",
    "select * from pgfence.guards",
    "select tgrelid::regclass::text, tgname, tgenabled, tgfoid::regproc::text, tgtype"
    " from pg_trigger where not tgisinternal order by 1, 2",
    "select oid::regprocedure::text, md5(prosrc), prosecdef, proconfig::text, proacl::text"
    " from pg_proc where pronamespace::regnamespace::text in ('pgfence', 'pgfence_registry')"
    " order by 1",
    "select relname, relowner::regrole::text, relacl::text, relkind, relpersistence from pg_class"
    " where relnamespace in ('public'::regnamespace, 'pgfence'::regnamespace) order by 1",
    "select roleid::regrole::text, member::regrole::text from pg_auth_members order by 1, 2",
)


@pytest.fixture(scope="module")
def scene(template: Database, keys: Keys) -> Iterator[Scene]:
    with copied(template, f"{template.name}_security") as database:
        yield set_scene(database, keys)


def set_scene(database: Database, keys: Keys) -> Scene:
    """The tables, who holds what, and the tokens that an attacker has."""
    owner = database.connect("billing_owner")
    for table in ("invoices", "open_invoices"):
        make_table(owner, table, "plain")
        run(owner, f"insert into {table} select i, '{DAY}', 10 from generate_series(1, 3) as i")
    protect(owner, "invoices")
    holder, attacker = (
        Worker.login(database, keys, "worker_a"),
        Worker.login(database, keys, ATTACKER),
    )

    def write(worker: Worker, resource: str) -> Any:
        held = worker.acquire(resource, ttl_ms=3_600_000)
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        return held

    old = write(attacker, BATCH)
    attacker.release(old.lease)
    theirs, mine = write(holder, BATCH), write(attacker, NEXT_BATCH)
    grant = grant_of(mine.token)
    message, signature = parts(mine.token)
    footer = mine.token.rpartition(".")[2]

    def with_its_signature(changed: bytes) -> str:
        body = urlsafe_b64encode(changed + signature).rstrip(b"=").decode()
        return f"v4.public.{body}.{footer}"

    return Scene(
        database,
        {
            "my_grant": mine.token,
            "old_grant": old.token,
            "their_grant": theirs.token,
            "their_lease": theirs.lease,
            "their_root": grant_of(theirs.token).operation_root,
            "raised": with_its_signature(replace(grant, fence_token=2**53 - 1).encode()),
            "renamed": with_its_signature(replace(grant, resource=BATCH).encode()),
            "flipped": with_its_signature(bytes([message[0] ^ 1]) + message[1:]),
            "cut": mine.token[:-1],
            "self_signed": tokens.sign(
                parts(theirs.token)[0], Grant.SCHEMA, Ed25519PrivateKey.generate()
            ),
            "status_proof": status_proof("0" * 64, keys, grant.issued_at, valid_ms=3_600_000),
            "elsewhere": forge(grant, keys, audience="elsewhere"),
        },
        holder,
    )


def parts(token: str) -> tuple[bytes, bytes]:
    """Message and signature of a token."""
    body = token.split(".")[2]
    raw = urlsafe_b64decode(body + "=" * (-len(body) % 4))
    return raw[:-64], raw[-64:]


def skip_what_this_version_lacks(conn: psycopg.Connection[Any], attempt: Attempt) -> None:
    if "merge into" in attempt.statements[-1] and conn.info.server_version < 150000:
        pytest.skip("MERGE came with PostgreSQL 15")


def test_the_page_holds_at_least_sixty_attempts() -> None:
    assert len(ATTEMPTS) >= 60
    assert len({(attempt.group, attempt.title) for attempt in ATTEMPTS}) == len(ATTEMPTS)


@of(*GROUPS)
def test_r24_r26_attempt_gets_the_answer_of_the_page_and_changes_nothing(
    scene: Scene, attempt: Attempt
) -> None:
    before = scene.state()
    with closing(psycopg.connect(scene.database.dsn(ATTACKER), autocommit=True)) as conn:
        skip_what_this_version_lacks(conn, attempt)
        answer, _ = scene.perform(conn, attempt)
    assert answer == attempt.answer
    assert scene.state() == before


@of(WRITING, PRETENDING)
def test_control_the_same_on_an_open_table_changes_rows(scene: Scene, attempt: Attempt) -> None:
    with psycopg.connect(scene.database.dsn()) as superuser:
        run(superuser, "delete from open_invoices")
        run(superuser, "insert into open_invoices table invoices")
    opened = replace(
        attempt,
        statements=tuple(
            re.sub(r"\binvoices\b", "open_invoices", statement) for statement in attempt.statements
        ),
    )
    before = scene.state()
    with closing(psycopg.connect(scene.database.dsn(ATTACKER), autocommit=True)) as conn:
        skip_what_this_version_lacks(conn, attempt)
        answer, _ = scene.perform(conn, opened)
        changed = run(conn, rows_of("public.open_invoices")).fetchall()
    assert not re.fullmatch("[0-9A-Z]{5}", answer), answer
    assert changed != scene.state()[STATE[0]]
    assert scene.state() == before


@of(GRANTS)
def test_control_the_attackers_own_grant_is_accepted(scene: Scene, attempt: Attempt) -> None:
    with psycopg.connect(scene.database.dsn(ATTACKER)) as conn:
        answer, _ = scene.perform(
            conn,
            Attempt("", "", ("select verdict from pgfence.fenced_apply(:'my_grant', 2, 'p')",), ""),
        )
        conn.rollback()
    assert answer == "ACCEPTED"
    assert attempt.answer != answer


@of(TABLES)
def test_control_without_its_triggers_the_table_is_changed(scene: Scene, attempt: Attempt) -> None:
    with psycopg.connect(scene.database.dsn()) as superuser:
        for (table,) in run(
            superuser,
            "select oid::regclass::text from pg_class where relkind = 'r' and relnamespace in"
            " ('pgfence'::regnamespace, 'pgfence_registry'::regnamespace)",
        ).fetchall():
            run(superuser, f"alter table {table} disable trigger all")
        answer, _ = scene.perform(superuser, attempt)
        superuser.rollback()
    assert answer == "nothing"


@of(FUNCTIONS, STOPPING)
def test_control_a_superuser_gets_another_answer(scene: Scene, attempt: Attempt) -> None:
    with psycopg.connect(scene.database.dsn()) as superuser:
        answer, _ = scene.perform(superuser, attempt)
        superuser.rollback()
    assert answer != attempt.answer


def test_after_all_attempts_the_owner_goes_on(scene: Scene) -> None:
    with scene.owner.transaction():
        verdict = scene.owner.apply(scene.variables["their_grant"], 2)
        assert verdict.verdict == "ACCEPTED"
        run(scene.owner.conn, "update invoices set amount = 11 where id = 1")
    for resource in (BATCH, NEXT_BATCH):
        assert scene.owner.call("select * from pgfence.verify_receipts(%s)", [resource]).ok
