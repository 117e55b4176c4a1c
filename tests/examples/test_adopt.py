"""examples/adopt: a billing service before pgfence, in shadow, and enforced."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import pgfence
from examples.adopt import models
from examples.adopt.after import balances, desk, nightly, statements
from examples.adopt.before import balances as old_balances
from examples.adopt.before import desk as old_desk
from examples.adopt.before import nightly as old_nightly
from examples.adopt.before import statements as old_statements
from pgfence.errors import from_driver
from pgfence.install import source_dir
from tests.examples.conftest import EXAMPLES, LEASE_ENDED, receipts
from tests.guarded import refused
from tests.proxy import proxy_to
from tests.rollout import enforce, evidence, shadow
from tests.support import Database
from tests.workers import as_owner

DAY = "2026-07-19"
PREFIXES = ("invoice-batch/", "credit/", "statement/", "account/")
TABLES = "invoices, credits, jobs, statements, accounts, locks"


@dataclass(frozen=True)
class Billing:
    """The service: its database, and its programs."""

    database: Database
    folder: Path
    set_environment: Callable[[str, str], None]

    def migrate(self, target: str) -> None:
        """`alembic upgrade`, as the owner of the tables."""
        self.set_environment("BILLING_DSN", self.database.dsn("billing_owner"))
        command.upgrade(Config(str(self.folder / "alembic.ini")), target)

    def shadow(self) -> None:
        for prefix in PREFIXES:
            shadow(self.database, prefix)
        self.migrate("heads")

    def enforce(self) -> None:
        for prefix in PREFIXES:
            enforce(self.database, prefix)

    def run(self, program: ModuleType, *arguments: Any, role: str = "worker_a") -> None:
        """A program of the service, in this process."""
        self.set_environment("BILLING_DSN", self.database.dsn(role))
        if asyncio.iscoroutinefunction(program.main):
            asyncio.run(program.main(*arguments))
        else:
            program.main(*arguments)

    def one(self, query: Any) -> Any:
        row = self.database.connect().execute(query).fetchone()
        return row[0] if row else None


@pytest.fixture
def billing(guarded: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Billing:
    """The service as it was, with one invoice; pgfence is there, and guards nothing."""
    shutil.copytree(EXAMPLES / "adopt", tmp_path / "adopt")
    ini = tmp_path / "adopt" / "alembic.ini"
    # What a wheel has in the package stands beside it in a checkout.
    ours = str(source_dir("migrations") / "versions")
    ini.write_text(ini.read_text().replace("pgfence:migrations/versions", ours))
    # Nothing is left open when a program has ended in this process.
    monkeypatch.setattr(models, "create_engine", partial(create_engine, poolclass=NullPool))
    for module in (old_balances, balances):
        engine = partial(create_async_engine, poolclass=NullPool)
        monkeypatch.setattr(module, "create_async_engine", engine)
    monkeypatch.syspath_prepend(EXAMPLES)  # as `prepend_sys_path` does, for good
    billing = Billing(guarded, tmp_path / "adopt", monkeypatch.setenv)
    billing.migrate("0001_tables")
    owner = guarded.connect("billing_owner")
    owner.execute(f"insert into invoices values (1, '{DAY}', 100)")
    owner.execute("insert into accounts select 1")
    owner.execute(f"grant select, insert, update, delete on {TABLES} to worker_a, worker_b")
    return billing


def test_a_new_database_gets_pgfence_from_alembic_and_is_enforced_at_once(
    billing: Billing, empty_database: Database
) -> None:
    """docs/adopt.md says so of laptops, where the role that migrates is a superuser."""
    billing.set_environment("BILLING_DSN", empty_database.dsn())
    config = Config(str(billing.folder / "alembic.ini"))
    command.upgrade(config, "heads")
    command.upgrade(config, "heads")
    with refused("PF201"):
        empty_database.connect().execute("insert into accounts select 1")
    command.downgrade(config, "0001_tables")
    empty_database.connect().execute("insert into accounts select 1")


def test_the_service_runs_before_in_shadow_and_enforced(
    billing: Billing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its four programs, the old ones as long as they may; each does its work every time."""
    superuser = billing.database.connect()
    for step in range(2, 6):
        superuser.execute(f"insert into invoices values ({step}, '{DAY}'::date + {step}, 100)")

    def everything(
        step: int,
        desk: ModuleType,
        nightly: ModuleType,
        statements: ModuleType,
        balances: ModuleType,
    ) -> None:
        async def ask_bank(account_id: int) -> int:
            return step

        monkeypatch.setattr(balances, "ask_bank", ask_bank)
        superuser.execute("insert into jobs values (%s)", [step])
        billing.run(desk, step, 30)
        billing.run(nightly, f"{date.fromisoformat(DAY) + timedelta(step)}")
        billing.run(statements, role="worker_b")
        billing.run(balances, role="worker_b")
        assert billing.one(f"select charged_cents from invoices where invoice_id = {step}") == 70
        said = billing.one(f"select text from statements where invoice_id = {step}")
        assert said == "You owe 70 cents."
        assert billing.one("select balance_cents from accounts") == step

    old = (old_desk, old_nightly, old_statements, old_balances)
    new = (desk, nightly, statements, balances)
    everything(2, *old)
    billing.shadow()
    everything(3, *old)
    seen = evidence(billing.database)
    assert {e.verdict for e in seen} == {"NOT_ADMITTED"}
    assert {e.written_table.rpartition(".")[2] for e in seen} == {
        "invoices", "credits", "statements", "accounts",
    }  # fmt: skip
    everything(4, *new)
    assert evidence(billing.database) == seen
    applied = [("credit/4", 1, 1), ("invoice-batch/2026-07-23", 1, 1), ("statement/4", 1, 1)]
    assert receipts(billing.database)[:3] == applied
    billing.enforce()
    everything(5, *new)
    for program, arguments in ((old_desk, [5, 31]), (old_nightly, [DAY]), (old_balances, [])):
        with pytest.raises(DBAPIError) as failed:
            billing.run(program, *arguments)
        assert isinstance(from_driver(failed.value), pgfence.NotAdmittedError)


@dataclass(frozen=True)
class Case:
    """A worker of the service, where it computes, and what it writes."""

    old: ModuleType
    new: ModuleType
    arguments: tuple[str, ...]
    compute: str
    answers: tuple[Any, Any]
    written: str
    resource: str


CASES = {
    "nightly": Case(
        old_nightly, nightly, (DAY,), "charges", ({1: 11}, {1: 22}),
        "select charged_cents from invoices where invoice_id = 1", f"invoice-batch/{DAY}",
    ),
    "statements": Case(
        old_statements, statements, (), "compose", ("11", "22"),
        "select text::int from statements", "statement/1",
    ),
    "balances": Case(
        old_balances, balances, (), "ask_bank", (11, 22),
        "select balance_cents from accounts", "account/1",
    ),
}  # fmt: skip


def stale(
    billing: Billing, case: Case, first: ModuleType, second: ModuleType, patch: pytest.MonkeyPatch
) -> BaseException | None:
    """A worker computes 11, and stands still; its lock or lease ends; another one computes 22 and
    writes; the first one goes on. What it failed with."""
    billing.database.connect().execute("insert into jobs select 1")
    calls = {case.compute: 0, "write": 0}
    pause_at = "write" if first is case.old else case.compute

    def other_one() -> None:
        billing.database.connect().execute("update locks set until = now()")
        billing.database.connect().execute("update jobs set next_try = now()")
        as_owner(
            billing.database,
            "update pgfence_registry.grants set lease_ends_at = clock_timestamp()"
            " where resource = %s and state = 'HELD'",
            [case.resource],
        )
        billing.run(second, *case.arguments, role="worker_b")
        assert billing.one(case.written) == 22

    def called(name: str) -> int:
        calls[name] += 1
        return calls[name]

    def instead(name: str, real: Any) -> Any:
        def function(*arguments: Any) -> Any:
            mine = called(name)
            if mine == 1 and name == pause_at:
                other_one()
            return real(*arguments) if name == "write" else case.answers[mine > 1]

        async def coroutine(*arguments: Any) -> Any:
            mine = called(name)
            if mine == 1 and name == pause_at:
                await asyncio.to_thread(other_one)
            return await real(*arguments) if name == "write" else case.answers[mine > 1]

        return coroutine if asyncio.iscoroutinefunction(real) else function

    for name in (case.compute, "write"):
        for module in {first, second}:
            patch.setattr(module, name, instead(name, getattr(module, name)))
    try:
        billing.run(first, *case.arguments)
    except (pgfence.PgfenceError, DBAPIError) as error:
        return error if isinstance(error, pgfence.PgfenceError) else from_driver(error)
    return None


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_before_a_stale_worker_overwrites(
    billing: Billing, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stale(billing, case, case.old, case.old, monkeypatch) is None
    assert billing.one(case.written) == 11


@pytest.mark.rule("R28")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("version", ["old", "new"])
def test_r28_in_shadow_a_stale_worker_overwrites_and_is_noted(
    billing: Billing, case: Case, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing.shadow()
    assert stale(billing, case, getattr(case, version), case.new, monkeypatch) is None
    assert billing.one(case.written) == 11
    noted = {e.verdict for e in evidence(billing.database)}
    assert noted == ({"NOT_ADMITTED"} if version == "old" else {"STALE_OWNER", "NOT_ADMITTED"})


@pytest.mark.rule("R10", "R23")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("version", ["old", "new"])
def test_r10_enforced_a_stale_worker_is_refused(
    billing: Billing,
    case: Case,
    version: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    billing.shadow()
    billing.enforce()
    error = stale(billing, case, getattr(case, version), case.new, monkeypatch)
    if version == "old":
        assert isinstance(error, pgfence.NotAdmittedError)
    elif case.new is statements:
        assert capsys.readouterr().out == "statement 1 is another worker's\n"
    else:
        assert isinstance(error, (pgfence.StaleOwnerError, pgfence.NotHeldError))
    assert billing.one(case.written) == 22


@pytest.mark.rule("R19")
def test_the_queue_worker_leaves_a_job_to_others_when_its_lease_ends_while_it_writes(
    billing: Billing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    billing.shadow()
    billing.enforce()
    billing.database.connect().execute("insert into jobs select 1")

    def write(session: Session, invoice_id: int, answer: str) -> None:
        old_statements.write(session, invoice_id, answer)
        session.execute(text(LEASE_ENDED))

    monkeypatch.setattr(statements, "write", write)
    billing.run(statements)
    assert capsys.readouterr().out == "statement 1 is another worker's\n"
    assert billing.one("select count(*) from statements") == 0


@pytest.mark.rule("R46")
def test_r46_the_batch_goes_on_where_it_stopped_and_once_only(
    billing: Billing, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing.database.connect().execute(
        f"insert into invoices select i, '{DAY}', 100 from generate_series(2, 5) as i"
    )
    billing.shadow()
    billing.enforce()
    computed: list[int] = []

    def charges(sessions: Any, page: list[int]) -> dict[int, int]:
        if page == [3] and 3 not in computed:
            computed.append(3)
            raise ConnectionError("the first run ends here")
        computed.extend(page)
        return old_nightly.charges(sessions, page)

    monkeypatch.setattr(old_nightly, "PAGE", 1)
    monkeypatch.setattr(nightly, "charges", charges)
    with pytest.raises(ConnectionError):
        billing.run(nightly, DAY)
    assert billing.one("select count(charged_cents) from invoices") == 2
    billing.run(nightly, DAY, role="worker_b")
    assert billing.one("select sum(charged_cents) from invoices") == 500
    assert computed.count(1) == computed.count(2) == 1
    before = list(computed)
    billing.run(nightly, DAY)
    assert computed == before
    assert [r[1:] for r in receipts(billing.database)] == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]


@pytest.mark.rule("R44")
@pytest.mark.parametrize("lost", ["lose_commit", "lose_reply_to_commit"])
def test_r44_a_credit_whose_commit_was_not_answered_is_there_once(
    billing: Billing, lost: str
) -> None:
    billing.shadow()
    billing.enforce()
    with proxy_to(billing.database.dsn("worker_a")) as proxy:
        place = conninfo_to_dict(proxy.dsn)
        url = make_url(billing.database.dsn("worker_a")).set(
            host=str(place["host"]), port=int(str(place["port"])), query={"sslmode": "disable"}
        )
        billing.set_environment("BILLING_DSN", url.render_as_string(hide_password=False))
        getattr(proxy, lost)()
        desk.main(1, 30)
    assert billing.one("select cents from credits") == 30
    assert receipts(billing.database) == [("credit/1", 1, 1)]
