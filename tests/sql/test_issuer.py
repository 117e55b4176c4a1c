"""The issuer signs what the database decided (R53)."""

from __future__ import annotations

import threading

import pytest

import pgfence
from pgfence import errors, tokens
from pgfence.model.grant import Grant
from pgfence.registry.issuer import Issuer
from tests import rotation_cases as rotation
from tests.support import Database, Keys, make_bundle, rotate
from tests.token_cases import NOW, SECOND, trust_key
from tests.workers import Worker, as_owner

RESOURCE = "invoice-batch/2026-07-19"


def test_r53_a_signed_grant_is_recorded_once_whoever_signs(database: Database, keys: Keys) -> None:
    worker = Worker.login(database, keys, "worker_a")
    asked = worker.ask(RESOURCE, "request-1")
    assert asked.state == "SIGNING"
    conn = database.connect("registry")
    ((lease, message),) = conn.execute(
        "select * from pgfence_registry.unsigned_grants()"
    ).fetchall()
    (first,) = Issuer(keys.grant).sign_pending(conn)
    assert (first.lease, first.recorded, first.problem) == (lease, True, None)
    assert first.grant is not None
    assert first.grant.resource == RESOURCE
    assert Issuer(keys.grant).sign_pending(conn) == []

    # Another issuer that had read the grant before signs the same bytes, and changes nothing.
    token = tokens.sign(message.encode(), Grant.SCHEMA, keys.grant)
    row = conn.execute("select pgfence_registry.record_signature(%s, %s)", [lease, token])
    assert row.fetchone() == (False,)
    assert worker.ask(RESOURCE, "request-1").token == token


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("not a grant", "not a lockGrant.v1"),
        ('{"schema":"lockStatus.v1"}', "not a lockGrant.v1"),
    ],
)
def test_r3_a_message_that_is_no_canonical_grant_is_not_signed(
    database: Database, keys: Keys, message: str, problem: str
) -> None:
    Worker.login(database, keys, "worker_a").ask(RESOURCE)
    as_owner(database, "update pgfence_registry.grants set message = %s", [message])
    (outcome,) = Issuer(keys.grant).sign_pending(database.connect("registry"))
    assert not outcome.recorded
    assert problem in (outcome.problem or "")


def test_a_message_that_names_another_lease_is_not_signed(database: Database, keys: Keys) -> None:
    Worker.login(database, keys, "worker_a").ask(RESOURCE)
    as_owner(database, "update pgfence_registry.grants set lease = 'lease-x'")
    (outcome,) = Issuer(keys.grant).sign_pending(database.connect("registry"))
    assert not outcome.recorded
    assert "the grant is for lease" in (outcome.problem or "")


def test_a_single_service_signs_for_itself(database: Database, keys: Keys) -> None:
    """In-process: no registry process runs."""
    issuer, conn, stop = Issuer(keys.grant), database.connect("registry"), threading.Event()

    def sign() -> None:
        while not stop.wait(0.01):
            issuer.sign_pending(conn)

    thread = threading.Thread(target=sign)
    thread.start()
    try:
        with (
            pgfence.connect(database.dsn("worker_a")) as fence,
            fence.hold(RESOURCE, operation="settle") as lease,
        ):
            assert lease.apply({"page": 1}, lambda tx: None).segment_seq == 1
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("purpose", ["root", "status"])
def test_r5_a_key_of_another_purpose_is_refused(keys: Keys, purpose: str) -> None:
    with pytest.raises(errors.TrustRefusedError, match=f"is a {purpose} key of trust bundle 1"):
        Issuer(getattr(keys, purpose)).check(make_bundle(keys), NOW)


def test_r5_a_key_that_is_not_valid_now_is_refused(keys: Keys) -> None:
    bundle = make_bundle(keys)
    Issuer(keys.grant).check(bundle, bundle.expires_at - 1)
    with pytest.raises(errors.TrustRefusedError, match="not valid now"):
        Issuer(keys.grant).check(bundle, bundle.expires_at)


UNSIGNED = "select from pgfence_registry.grants where token is null"


def test_r33_a_key_that_was_rotated_out_signs_nothing_any_more(
    database: Database, keys: Keys
) -> None:
    issuer, conn = Issuer(keys.grant), database.connect("registry")
    worker = Worker.login(database, keys, "worker_a")
    worker.ask("before")
    assert len(issuer.sign_pending(conn)) == 1

    second = rotation.with_next_grant_key(make_bundle(keys))
    rotate(database, second, keys.root)
    assert issuer.sign_pending(conn) == []  # nobody waits: nothing to say
    worker.ask("after")
    for _ in range(2):
        with pytest.raises(errors.TrustRefusedError, match="is no key of trust bundle 2"):
            issuer.sign_pending(conn)
    assert len(conn.execute("select from pgfence_registry.unsigned_grants()").fetchall()) == 1

    (signed,) = Issuer(rotation.NEXT_GRANT_KEY).sign_pending(conn)
    assert signed.recorded


def test_r33_a_key_whose_window_has_ended_signs_nothing_any_more(
    database: Database, keys: Keys
) -> None:
    issuer, conn = Issuer(keys.grant), database.connect("registry")
    issuer.meet(conn)
    first = make_bundle(keys)
    ended = trust_key(keys.grant, "grant", 0, SECOND)
    trusted = [ended if key.purpose == "grant" else key for key in first.keys]
    rotate(database, rotation.after(first, keys=tuple(trusted)), keys.root)
    Worker.login(database, keys, "worker_a").ask(RESOURCE)
    with pytest.raises(errors.TrustRefusedError, match="not valid now"):
        issuer.sign_pending(conn)


def test_r33_an_issuer_trusts_what_follows_from_the_bundle_that_it_met(
    database: Database, keys: Keys
) -> None:
    issuer, conn = Issuer(keys.grant), database.connect("registry")
    worker = Worker.login(database, keys, "worker_a")
    issuer.meet(conn)
    second = rotation.after(make_bundle(keys), lowest_epoch=2)
    rotate(database, second, keys.root)
    worker.ask("followed")
    assert len(issuer.sign_pending(conn)) == 1

    as_owner(database, "update pgfence.trust_bundles set signatures = '{}'")
    worker.ask("unsigned")
    assert len(issuer.sign_pending(conn)) == 1  # it has followed already
    late = Issuer(keys.grant)
    late._bundle = make_bundle(keys)
    worker.ask("late")
    with pytest.raises(errors.BundleSplitError, match="does not follow from bundle 1"):
        late.sign_pending(conn)
