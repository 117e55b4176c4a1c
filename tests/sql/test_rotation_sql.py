"""Rotation of the trust bundle inside PostgreSQL (R31, R32), and what it ends (R4, R7, R9)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from pgfence.model.bundle import TrustBundle, sign_bundle
from tests import rotation_cases as rotation
from tests import support
from tests.support import PATIENCE, Database, Keys, make_bundle, rotate, wait_until_blocked
from tests.token_cases import GRANT_KEY, STATUS_KEY
from tests.workers import Worker, as_owner, grant_of, in_background

RESOURCE = "invoice-batch/2026-07-19"
INSTALL = "select pgfence.install_trust_bundle(%s, %s)"

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def untrusting(cluster: support.TestServer) -> Iterator[support.Database]:
    """A database of this file's own, without a bundle, with the tables of every key computed."""
    database = support.create_database(cluster, f"pgfence_rotation_{os.getpid()}")
    support.install_from_manifest(database)
    with psycopg.connect(database.dsn(), autocommit=True) as conn:
        conn.execute("set role pgfence_owner")
        trusted = rotation.keys(
            rotation.PEOPLE, (GRANT_KEY, rotation.NEXT_GRANT_KEY), (STATUS_KEY,)
        )
        for key in trusted:
            conn.execute("select pgfence._ed25519_install_key(%s)", [key.public_key])
    yield database
    database.drop()


@pytest.fixture
def conn(untrusting: support.Database) -> Iterator[Connection]:
    """Acting as pgfence_owner in a transaction that is rolled back."""
    with psycopg.connect(untrusting.dsn()) as connection:
        connection.execute("set role pgfence_owner")
        yield connection
        connection.rollback()


def put_in_force(conn: Connection, bundle: TrustBundle | None) -> None:
    """Make `bundle` the one in force, whoever may have signed it; None: there is none."""
    conn.execute("delete from pgfence.trust_keys")
    conn.execute("delete from pgfence.trust_bundles")
    if bundle is None:
        return
    time = "pgfence._from_microseconds(%s)"
    conn.execute(
        "insert into pgfence.trust_bundles (version, document, digest, signatures, audience,"
        " lowest_epoch, root_threshold, issued_at, expires_at)"
        f" values (%s, %s, %s, '{{}}', %s, %s, %s, {time}, {time})",
        [
            bundle.version, bundle.document, bundle.digest, bundle.audience, bundle.lowest_epoch,
            bundle.root_threshold, bundle.issued_at, bundle.expires_at,
        ],
    )  # fmt: skip
    for key in bundle.keys:
        conn.execute(
            f"insert into pgfence.trust_keys values (%s, %s, %s, %s, {time}, {time})",
            [bundle.version, key.kid, key.purpose, key.public_key, key.not_before, key.expires_at],
        )


def install(conn: Connection, document: str, signatures: Sequence[str]) -> str | None:
    """What the database finds wrong with a bundle; None: it is installed."""
    try:
        with conn.transaction():
            conn.execute(INSTALL, [document, list(signatures)])
    except psycopg.Error as error:
        if error.sqlstate != "PF305":
            raise
        return str(json.loads(error.diag.message_detail or "")["problem"])
    return None


def trust_state(conn: Connection) -> list[tuple[Any, ...]]:
    """Everything that a bundle changes, the computed tables' keys included."""
    return conn.execute(
        "select b::text from pgfence.trust_bundles as b union all"
        " select k::text from pgfence.trust_keys as k union all"
        " select e.public_key::text from pgfence.ed25519_keys as e union all"
        " select key_id || ':' || count(*) from pgfence.ed25519_points group by key_id union all"
        " select c::text from pgfence.configuration as c"
        " order by 1"
    ).fetchall()


@pytest.mark.parametrize("case", rotation.rotation_cases(), ids=lambda case: case.name)
def test_r31_r32_next_bundle_gets_the_answer_of_the_table(
    conn: Connection, case: rotation.Case
) -> None:
    put_in_force(conn, case.before)
    before = trust_state(conn)
    assert install(conn, case.document, case.signatures) == case.problem
    if case.problem is not None:
        assert trust_state(conn) == before
        return
    row = conn.execute("select version, document from pgfence.trust_bundle()").fetchone()
    assert row == (TrustBundle.parse(case.document).version, case.document)


def test_r27_nobody_but_the_owner_installs_or_asks_what_is_wrong(database: Database) -> None:
    for role in ("worker_a", "registry", "auditor", "outsider"):
        connection = database.connect(role)
        for call in (
            "install_trust_bundle('', '{}')",
            "_bundle_problem(null, null, null, '', '{}', now())",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"select pgfence.{call}")
        if role == "outsider":
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("select from pgfence.trust_chain(1)")
        else:
            assert connection.execute("select version from pgfence.trust_chain(1)").fetchall()


def test_r33_the_chain_is_what_was_installed_from_a_version_on(
    database: Database, keys: Keys
) -> None:
    second = rotation.with_next_grant_key(make_bundle(keys))
    rotate(database, second, keys.root)
    conn = database.connect("worker_a")
    chain = conn.execute("select * from pgfence.trust_chain(1)").fetchall()
    assert [version for version, *_ in chain] == [1, 2]
    assert chain[1][1:] == (second.document, [sign_bundle(second.document, keys.root)])
    assert conn.execute("select version from pgfence.trust_chain(2)").fetchall() == [(2,)]
    assert conn.execute("select version from pgfence.trust_chain(3)").fetchall() == []


def test_comb_tables_stand_for_the_keys_of_the_bundle_in_force_and_no_others(
    database: Database, keys: Keys
) -> None:
    def computed() -> dict[bytes, int]:
        rows = database.connect().execute(
            "select public_key, count(*) from pgfence.ed25519_keys"
            " join pgfence.ed25519_points using (key_id) where key_id <> 0 group by 1"
        )
        return dict(rows.fetchall())

    first, second = make_bundle(keys), rotation.with_next_grant_key(make_bundle(keys))
    assert computed() == {key.public_key: 8192 for key in first.keys}
    rotate(database, second, keys.root)
    assert computed() == {key.public_key: 8192 for key in second.keys}
    rotate(database, rotation.after(second, keys=first.keys), keys.root)
    assert computed() == {key.public_key: 8192 for key in first.keys}


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


def test_r4_a_remembered_verification_does_not_outlive_its_key(
    worker: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    rotate(database, rotation.with_next_grant_key(make_bundle(keys)), keys.root)
    refused = worker.apply(held.token, 2)
    assert (refused.verdict, refused.reason) == ("UNKNOWN_KEY", "KID")
    assert worker.advance(held.token).verdict == "UNKNOWN_KEY"

    # The control: what the fence row remembers is still there, and only the version says no.
    as_owner(
        database,
        "update pgfence.fences set checked_version = (select version from pgfence.configuration)",
    )
    assert worker.apply(held.token, 2).verdict == "ACCEPTED"


def test_r7_a_remembered_verification_does_not_outlive_its_epoch(
    worker: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    first = make_bundle(keys)
    second = rotation.after(first)
    rotate(database, second, keys.root)
    assert worker.apply(held.token, 2).verdict == "ACCEPTED"
    rotate(database, rotation.after(second, lowest_epoch=2), keys.root)
    assert worker.apply(held.token, 3).verdict == "REVOKED_EPOCH"


def test_r7_a_lease_of_a_revoked_epoch_is_not_renewed_and_nobody_waits_for_it(
    worker: Worker, database: Database, keys: Keys
) -> None:
    rival = Worker.login(database, keys, "worker_b")
    held = worker.acquire(RESOURCE)
    assert rival.ask(RESOURCE, "rival").state == "WAIT"
    rotate(database, rotation.after(make_bundle(keys), lowest_epoch=7), keys.root)
    renewed = worker.renew(held.lease)
    assert (renewed.state, renewed.remaining_ms) == ("EXPIRED", 0)

    taken = rival.acquire(RESOURCE, "rival")
    assert (taken.state, grant_of(taken.token).issuer_epoch) == ("HELD", 7)
    assert rival.apply(taken.token, 1).verdict == "ACCEPTED"
    # A bundle that leaves the epoch alone leaves the leases alone.
    second = rotation.after(make_bundle(keys), lowest_epoch=7)
    rotate(database, rotation.after(second), keys.root)
    assert rival.renew(taken.lease).remaining_ms > 0
    assert rival.apply(taken.token, 2).verdict == "ACCEPTED"


@pytest.mark.parametrize("checked", [True, False], ids=["quick way", "full check"])
def test_r9_a_call_that_waited_while_its_key_was_rotated_out_is_not_accepted(
    worker: Worker, database: Database, keys: Keys, checked: bool
) -> None:
    held = worker.acquire(RESOURCE)
    if checked:
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
    blocker = database.connect(autocommit=False)
    blocker.execute("set role pgfence_owner")
    blocker.execute("select from pgfence.fences where resource = %s for update", [RESOURCE])
    answer = in_background(lambda: worker.apply(held.token, 2 if checked else 1))
    wait_until_blocked(database.connect(), worker.pid)
    rotate(database, rotation.with_next_grant_key(make_bundle(keys)), keys.root)
    blocker.rollback()
    if checked:
        with pytest.raises(psycopg.errors.SerializationFailure):
            answer.result(PATIENCE)
    else:
        assert answer.result(PATIENCE).verdict == "UNKNOWN_KEY"
    assert worker.apply(held.token, 2 if checked else 1).verdict == "UNKNOWN_KEY"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_r9_a_snapshot_older_than_the_bundle_ends_in_40001(
    worker: Worker, database: Database, keys: Keys, isolation: str
) -> None:
    held = worker.acquire(RESOURCE)
    with pytest.raises(psycopg.errors.SerializationFailure), worker.transaction(isolation):
        worker.call("select 1")
        rotate(database, rotation.with_next_grant_key(make_bundle(keys)), keys.root)
        worker.apply(held.token, 1)
    with worker.transaction(isolation):
        assert worker.apply(held.token, 1).verdict == "UNKNOWN_KEY"


def test_r9_a_transaction_that_was_admitted_before_gets_no_further_segment(
    worker: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    with worker.transaction():
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        rotate(database, rotation.with_next_grant_key(make_bundle(keys)), keys.root)
        assert worker.apply(held.token, 2).verdict == "UNKNOWN_KEY"


def test_r9_installing_waits_for_an_admitted_transaction_with_a_snapshot(
    worker: Worker, database: Database, keys: Keys
) -> None:
    """What it was admitted by stays as it was until it ends, so it may have come before."""
    held = worker.acquire(RESOURCE)
    installer = database.connect("dba")
    second = rotation.with_next_grant_key(make_bundle(keys))
    arguments = [second.document, [sign_bundle(second.document, keys.root)]]
    with worker.transaction("repeatable read"):
        assert worker.apply(held.token, 1).verdict == "ACCEPTED"
        installed = in_background(lambda: installer.execute(INSTALL, arguments).fetchone())
        wait_until_blocked(database.connect(), installer.info.backend_pid)
    assert installed.result(PATIENCE) == (2,)


@pytest.mark.parametrize("first_commits", [True, False], ids=["commits", "rolls back"])
def test_r31_of_two_second_versions_at_once_one_is_installed(
    database: Database, keys: Keys, first_commits: bool
) -> None:
    one, other = (
        rotation.with_next_grant_key(make_bundle(keys)),
        rotation.after(make_bundle(keys), lowest_epoch=3),
    )
    slow, fast = database.connect("dba", autocommit=False), database.connect("dba")
    slow.execute(INSTALL, [one.document, [sign_bundle(one.document, keys.root)]])
    loser = in_background(
        lambda: install(fast, other.document, [sign_bundle(other.document, keys.root)])
    )
    wait_until_blocked(database.connect(), fast.info.backend_pid)
    if first_commits:
        slow.commit()
        assert loser.result(PATIENCE) == "VERSION"
    else:
        slow.rollback()
        assert loser.result(PATIENCE) is None
    rows = database.connect().execute(
        "select version, digest from pgfence.trust_bundles order by 1"
    )
    assert rows.fetchall() == [
        (1, make_bundle(keys).digest),
        (2, (one if first_commits else other).digest),
    ]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_r31_an_installer_with_an_old_snapshot_tries_again(
    database: Database, keys: Keys, isolation: str
) -> None:
    one, other = (
        rotation.with_next_grant_key(make_bundle(keys)),
        rotation.after(make_bundle(keys), lowest_epoch=3),
    )
    conn = database.connect("dba")
    conn.execute(f"begin isolation level {isolation}")
    conn.execute("select from pgfence.trust_bundles")
    rotate(database, one, keys.root)
    with pytest.raises(psycopg.errors.SerializationFailure):
        conn.execute(INSTALL, [other.document, [sign_bundle(other.document, keys.root)]])
    conn.execute("rollback")
    assert install(conn, other.document, [sign_bundle(other.document, keys.root)]) == "VERSION"


def test_r32_a_transaction_that_is_rolled_back_installed_nothing(
    database: Database, keys: Keys
) -> None:
    conn = database.connect()
    before = trust_state(conn)
    second = rotation.with_next_grant_key(make_bundle(keys))
    installer = database.connect("dba", autocommit=False)
    installer.execute(INSTALL, [second.document, [sign_bundle(second.document, keys.root)]])
    assert trust_state(conn) == before
    installer.rollback()
    assert trust_state(conn) == before
    rotate(database, second, keys.root)
    assert trust_state(conn) != before


def test_r31_two_versions_in_one_transaction_are_installed_together(
    database: Database, keys: Keys
) -> None:
    second = rotation.with_next_grant_key(make_bundle(keys))
    third = rotation.after(second, lowest_epoch=9)
    with database.connect("dba", autocommit=False) as conn:
        for bundle in (second, third):
            conn.execute(INSTALL, [bundle.document, [sign_bundle(bundle.document, keys.root)]])
        conn.commit()
    row = database.connect("auditor").execute(
        "select max(version), (select array[issuer_epoch, epoch_floor] from pgfence.configuration)"
        " from pgfence.trust_bundles"
    )
    assert row.fetchone() == (3, [9, 9])


def test_r31_a_bundle_without_keys_refuses_every_grant_and_an_unreadable_one_has_no_successor(
    worker: Worker, database: Database, keys: Keys
) -> None:
    held = worker.acquire(RESOURCE)
    second = rotation.with_next_grant_key(make_bundle(keys))
    as_owner(database, "update pgfence.trust_bundles set document = document || ' '")
    with pytest.raises(psycopg.errors.DataCorrupted):
        rotate(database, second, keys.root)
    as_owner(database, "delete from pgfence.trust_keys")
    assert worker.apply(held.token, 1).verdict == "UNKNOWN_KEY"


@pytest.mark.rule("R31")
@pytest.mark.parametrize("arguments", ["null, '{}'", "'a document', null"])
def test_r31_a_bundle_without_document_or_signatures_is_a_clear_error(
    database: Database, arguments: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        database.connect("dba").execute(f"select pgfence.install_trust_bundle({arguments})")
    assert caught.value.sqlstate == "PF301"
