"""A client follows the database's trust bundle from the one it trusts, or writes nothing (R33)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pgfence import errors
from pgfence.model.bundle import TrustBundle
from pgfence.registry.issuer import Issuer
from tests import rotation_cases as rotation
from tests.conformance.conftest import RESOURCE
from tests.conformance.drivers import Driver, Fence
from tests.registry import registry
from tests.support import Database, Keys, make_bundle, rotate
from tests.workers import Worker, as_owner


@pytest.fixture
def first(keys: Keys) -> TrustBundle:
    return make_bundle(keys)


@pytest.fixture
def second(first: TrustBundle) -> TrustBundle:
    """Another grant key, and nothing else."""
    return rotation.with_next_grant_key(first)


@pytest.fixture
def next_keys(keys: Keys) -> Keys:
    return replace(keys, grant=rotation.NEXT_GRANT_KEY)


@pytest.fixture
def fence(driver: Driver, database: Database) -> Iterator[Fence]:
    """Connected before anything happens."""
    opened = driver.connect(database.dsn("worker_a"))
    yield opened
    opened.close()


def slip_in(database: Database, bundle: TrustBundle) -> None:
    """Put a bundle in force that nobody signed, as somebody who owns the tables can."""
    as_owner(
        database,
        "insert into pgfence.trust_bundles select %s, %s, %s, '{}', audience, lowest_epoch,"
        " root_threshold, issued_at, expires_at from pgfence.trust_bundles where version = 1",
        [bundle.version, bundle.document, bundle.digest],
    )
    for key in bundle.keys:
        as_owner(
            database,
            "insert into pgfence.trust_keys values (%s, %s, %s, %s, 'epoch', 'infinity')",
            [bundle.version, key.kid, key.purpose, key.public_key],
        )
        as_owner(database, "select pgfence._ed25519_install_key(%s)", [key.public_key])


def put_back(database: Database) -> None:
    """Only the first bundle is left, as in a copy of before."""
    as_owner(database, "delete from pgfence.trust_keys where bundle_version > 1")
    as_owner(database, "delete from pgfence.trust_bundles where version > 1")
    as_owner(database, "update pgfence.configuration set version = version + 1")


@contextmanager
def split(database: Database, says: str) -> Iterator[None]:
    """The block raises BUNDLE_SPLIT, writes nothing, and leaves no lease behind."""
    with pytest.raises(errors.BundleSplitError, match=says):
        yield
    superuser = database.connect()
    assert superuser.execute("select from pgfence.receipts").fetchall() == []
    held = superuser.execute("select from pgfence_registry.grants where state = 'HELD'")
    assert held.fetchall() == []


def apply(fence: Fence) -> int:
    with fence.hold(RESOURCE, operation="settle") as lease:
        return lease.apply({"page": 1}, lambda execute: None).fence_token


def test_r33_an_open_fence_follows_when_it_acquires(
    fence: Fence, database: Database, keys: Keys, next_keys: Keys, second: TrustBundle
) -> None:
    with registry(database, keys):
        assert apply(fence) == 1
    rotate(database, second, keys.root)
    rotate(database, rotation.after(second, lowest_epoch=4), keys.root)
    with registry(database, next_keys):
        assert apply(fence) == 2


def test_r33_an_open_fence_follows_when_it_is_given_a_grant_of_an_unknown_key(
    driver: Driver, fence: Fence, database: Database, keys: Keys, second: TrustBundle
) -> None:
    rotate(database, second, keys.root)
    worker = Worker.login(database, keys, "worker_a")
    worker.ask(RESOURCE, "monday")
    Issuer(rotation.NEXT_GRANT_KEY).sign_pending(database.connect("registry"))
    token = worker.ask(RESOURCE, "monday").token
    with driver.transaction(database.dsn("worker_a")) as (conn, _):
        assert fence.apply(conn, token, 1, {}).verdict == "ACCEPTED"
        assert fence.apply(conn, token.replace("v4", "v3"), 2, {}).verdict == "MALFORMED"


@pytest.mark.parametrize("lowest_epoch", [None, 2], ids=["the key", "the epoch"])
def test_r4_a_lease_of_before_the_rotation_is_refused_and_the_next_one_is_good(
    fence: Fence, database: Database, keys: Keys, first: TrustBundle, second: TrustBundle,
    next_keys: Keys, lowest_epoch: int | None,
) -> None:  # fmt: skip
    refusal: type[errors.RefusedError] = errors.UnknownKeyError
    if lowest_epoch:
        second, next_keys = rotation.after(first, lowest_epoch=lowest_epoch), keys
        refusal = errors.RevokedEpochError
    with registry(database, keys):
        held = fence.hold(RESOURCE, operation="settle", ttl=60)
        lease = held.__enter__()
    assert lease.apply({"page": 1}, lambda execute: None).segment_seq == 1
    rotate(database, second, keys.root)
    with pytest.raises(refusal):
        lease.apply({"page": 2}, lambda execute: pytest.fail("the work ran"))
    held.__exit__(None, None, None)
    with registry(database, next_keys):
        assert apply(fence) == 2


def test_r33_a_bundle_that_does_not_follow_is_not_trusted(
    fence: Fence, database: Database, next_keys: Keys, second: TrustBundle
) -> None:
    slip_in(database, second)
    with registry(database, next_keys), split(database, "does not follow from bundle 1"):
        apply(fence)


def test_r33_who_connects_afterwards_trusts_what_is_in_force_unless_it_names_a_bundle(
    driver: Driver, database: Database, next_keys: Keys, first: TrustBundle, second: TrustBundle
) -> None:
    """The control of the one before, and why a bundle should be named."""
    slip_in(database, second)
    with split(database, "does not follow from bundle 1"):
        driver.connect(database.dsn("worker_a"), bundle_digest=first.digest)
    trusting = driver.connect(database.dsn("worker_a"))
    with registry(database, next_keys):
        assert apply(trusting) == 1
    trusting.close()


def test_r33_a_database_that_was_put_back_to_an_older_bundle_is_not_written(
    driver: Driver, database: Database, keys: Keys, second: TrustBundle
) -> None:
    rotate(database, second, keys.root)
    fence = driver.connect(database.dsn("worker_a"))
    put_back(database)
    with registry(database, keys), split(database, "trusts trust bundle 2.*does not have"):
        apply(fence)
    fence.close()


def test_r33_another_bundle_of_the_same_version_is_not_trusted(
    driver: Driver, database: Database, keys: Keys, first: TrustBundle, second: TrustBundle
) -> None:
    rotate(database, second, keys.root)
    fence = driver.connect(database.dsn("worker_a"))
    put_back(database)
    rotate(database, rotation.after(first, lowest_epoch=2), keys.root)
    with registry(database, keys), split(database, "another trust bundle 2"):
        apply(fence)
    fence.close()


def test_r33_a_refusal_because_of_a_bundle_that_does_not_follow_is_a_split(
    fence: Fence, database: Database, keys: Keys, second: TrustBundle
) -> None:
    with registry(database, keys):
        held = fence.hold(RESOURCE, operation="settle", ttl=60)
        lease = held.__enter__()
    slip_in(database, second)
    as_owner(database, "update pgfence.configuration set version = version + 1")
    with pytest.raises(errors.BundleSplitError):
        lease.apply({"page": 1}, lambda execute: pytest.fail("the work ran"))
    held.__exit__(None, None, None)


def test_r33_who_names_an_earlier_bundle_gets_to_the_one_in_force_by_its_signatures(
    driver: Driver, database: Database, keys: Keys, next_keys: Keys, first: TrustBundle,
    second: TrustBundle,
) -> None:  # fmt: skip
    third = rotation.after(second, lowest_epoch=3)
    rotate(database, second, keys.root)
    rotate(database, third, keys.root)
    with registry(database, next_keys):
        for bundle in (first, second, third):
            fence = driver.connect(database.dsn("worker_a"), bundle_digest=bundle.digest)
            apply(fence)
            fence.close()
    unknown = rotation.after(first, lowest_epoch=9).digest
    with pytest.raises(errors.BundleSplitError, match=f"this client trusts {unknown}"):
        driver.connect(database.dsn("worker_a"), bundle_digest=unknown)
