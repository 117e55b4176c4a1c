"""A client follows the database's trust bundle from the one it trusts, or writes nothing (R33)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest

from pgfence import errors
from pgfence.model.bundle import TrustBundle
from pgfence.registry.issuer import Issuer
from tests import rotation_cases as rotation
from tests.conformance.conftest import RESOURCE, Connect, count
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
def fence(connect_unserved: Connect) -> Fence:
    """Connected before anything happens."""
    return connect_unserved()


Install = Callable[[TrustBundle], None]


@pytest.fixture
def at_registry(database: Database, registered: Database, keys: Keys) -> Install:
    """Put the same keys and epoch in force at the registry, in a bundle of its own; where the
    registry is here, that is the bundle itself, which the test has put in force.
    """
    latest = make_bundle(keys, "registry")

    def install(bundle: TrustBundle) -> None:
        nonlocal latest
        if registered is not database:
            latest = replace(bundle, audience=latest.audience, previous=latest.digest)
            rotate(registered, latest, keys.root)

    return install


@pytest.fixture
def everywhere(database: Database, keys: Keys, at_registry: Install) -> Install:
    """Put a bundle in force, and the same keys and epoch at the registry."""

    def install(bundle: TrustBundle) -> None:
        rotate(database, bundle, keys.root)
        at_registry(bundle)

    return install


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


Split = Callable[[str], AbstractContextManager[None]]


@pytest.fixture
def split(database: Database, registered: Database) -> Split:
    """A block that raises BUNDLE_SPLIT, writes nothing, and leaves no lease behind."""

    @contextmanager
    def splits(says: str) -> Iterator[None]:
        with pytest.raises(errors.BundleSplitError, match=says):
            yield
        assert count(database, "select count(*) from pgfence.receipts") == 0
        held = "select count(*) from pgfence_registry.grants where state = 'HELD'"
        assert count(registered, held) == 0

    return splits


def apply(fence: Fence) -> int:
    with fence.hold(RESOURCE, operation="settle") as lease:
        return lease.apply({"page": 1}, lambda execute: None).fence_token


def test_r33_an_open_fence_follows_when_it_acquires(
    fence: Fence, registered: Database, keys: Keys, next_keys: Keys, second: TrustBundle,
    everywhere: Install,
) -> None:  # fmt: skip
    with registry(registered, keys):
        assert apply(fence) == 1
    everywhere(second)
    everywhere(rotation.after(second, lowest_epoch=4))
    with registry(registered, next_keys):
        assert apply(fence) == 2


def test_r33_an_open_fence_follows_when_it_is_given_a_grant_of_an_unknown_key(
    driver: Driver, fence: Fence, database: Database, registered: Database, keys: Keys,
    second: TrustBundle, everywhere: Install,
) -> None:  # fmt: skip
    everywhere(second)
    worker = Worker.login(registered, keys, "worker_a")
    worker.ask(RESOURCE, "monday")
    Issuer(rotation.NEXT_GRANT_KEY).sign_pending(registered.connect("registry"))
    token = worker.ask(RESOURCE, "monday").token
    with driver.transaction(database.dsn("worker_a")) as (conn, _):
        assert fence.apply(conn, token, 1, {}).verdict == "ACCEPTED"
        assert fence.apply(conn, token.replace("v4", "v3"), 2, {}).verdict == "MALFORMED"


@pytest.mark.parametrize("lowest_epoch", [None, 2], ids=["the key", "the epoch"])
def test_r4_a_lease_of_before_the_rotation_is_refused_and_the_next_one_is_good(
    fence: Fence, registered: Database, keys: Keys, first: TrustBundle, second: TrustBundle,
    next_keys: Keys, lowest_epoch: int | None, everywhere: Install,
) -> None:  # fmt: skip
    refusal: type[errors.RefusedError] = errors.UnknownKeyError
    if lowest_epoch:
        second, next_keys = rotation.after(first, lowest_epoch=lowest_epoch), keys
        refusal = errors.RevokedEpochError
    with registry(registered, keys):
        held = fence.hold(RESOURCE, operation="settle", ttl=60)
        lease = held.__enter__()
    assert lease.apply({"page": 1}, lambda execute: None).segment_seq == 1
    everywhere(second)
    with pytest.raises(refusal):
        lease.apply({"page": 2}, lambda execute: pytest.fail("the work ran"))
    held.__exit__(None, None, None)
    with registry(registered, next_keys):
        assert apply(fence) == 2


def test_r33_a_bundle_that_does_not_follow_is_not_trusted(
    fence: Fence, database: Database, registered: Database, next_keys: Keys, second: TrustBundle,
    at_registry: Install, split: Split,
) -> None:  # fmt: skip
    slip_in(database, second)
    at_registry(second)
    with registry(registered, next_keys), split("does not follow from bundle 1"):
        apply(fence)


def test_r33_who_connects_afterwards_trusts_what_is_in_force_unless_it_names_a_bundle(
    connect_unserved: Connect, database: Database, registered: Database, next_keys: Keys,
    first: TrustBundle, second: TrustBundle, at_registry: Install, split: Split,
) -> None:  # fmt: skip
    """The control of the one before, and why a bundle should be named."""
    slip_in(database, second)
    at_registry(second)
    with split("does not follow from bundle 1"):
        connect_unserved(bundle_digest=first.digest)
    trusting = connect_unserved()
    with registry(registered, next_keys):
        assert apply(trusting) == 1


def test_r33_a_database_that_was_put_back_to_an_older_bundle_is_not_written(
    connect_unserved: Connect, database: Database, registered: Database, keys: Keys,
    second: TrustBundle, split: Split,
) -> None:  # fmt: skip
    rotate(database, second, keys.root)
    fence = connect_unserved()
    put_back(database)
    with registry(registered, keys), split("trusts trust bundle 2.*does not have"):
        apply(fence)


def test_r33_another_bundle_of_the_same_version_is_not_trusted(
    connect_unserved: Connect, database: Database, registered: Database, keys: Keys,
    first: TrustBundle, second: TrustBundle, split: Split,
) -> None:  # fmt: skip
    rotate(database, second, keys.root)
    fence = connect_unserved()
    put_back(database)
    rotate(database, rotation.after(first, lowest_epoch=2), keys.root)
    with registry(registered, keys), split("another trust bundle 2"):
        apply(fence)


def test_r33_a_refusal_because_of_a_bundle_that_does_not_follow_is_a_split(
    fence: Fence, database: Database, registered: Database, keys: Keys, second: TrustBundle
) -> None:
    with registry(registered, keys):
        held = fence.hold(RESOURCE, operation="settle", ttl=60)
        lease = held.__enter__()
    slip_in(database, second)
    as_owner(database, "update pgfence.configuration set version = version + 1")
    with pytest.raises(errors.BundleSplitError):
        lease.apply({"page": 1}, lambda execute: pytest.fail("the work ran"))
    held.__exit__(None, None, None)


def test_r33_who_names_an_earlier_bundle_gets_to_the_one_in_force_by_its_signatures(
    connect_unserved: Connect, registered: Database, next_keys: Keys, first: TrustBundle,
    second: TrustBundle, everywhere: Install,
) -> None:  # fmt: skip
    third = rotation.after(second, lowest_epoch=3)
    everywhere(second)
    everywhere(third)
    with registry(registered, next_keys):
        for bundle in (first, second, third):
            apply(connect_unserved(bundle_digest=bundle.digest))
    unknown = rotation.after(first, lowest_epoch=9).digest
    with pytest.raises(errors.BundleSplitError, match=f"this client trusts {unknown}"):
        connect_unserved(bundle_digest=unknown)
