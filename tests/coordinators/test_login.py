"""etcd whose users log in with a password."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from math import inf

import pytest

from pgfence import coordinators
from pgfence.clock import monotonic
from pgfence.coordinators.protocol import Holder, Patience, Standing
from pgfence.coordinators.session import Session
from pgfence.errors import LockServiceError
from tests.coordinators.servers import Etcd
from tests.support import wait_until


def etcdctl(servers: Etcd, *arguments: str) -> None:
    """As the administrator does."""
    program = shutil.which("etcdctl")
    assert program is not None
    (address,) = servers.addresses
    endpoint = f"{address[0]}:{address[1]}"
    subprocess.run(
        [program, "--endpoints", endpoint, *arguments],
        env={"ETCDCTL_API": "3"},
        check=True,
        capture_output=True,
    )


def administer(servers: Etcd, *arguments: str) -> None:
    etcdctl(servers, "--user", "root:rootpw", *arguments)


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    """One user, who may do with /pgfence/ what he likes, and has an odd password."""
    with Etcd() as servers:
        etcdctl(servers, "user", "add", "root:rootpw")
        etcdctl(servers, "role", "add", "root")
        etcdctl(servers, "user", "grant-role", "root", "root")
        etcdctl(servers, "user", "add", "pgfence:s@cret/%")
        etcdctl(servers, "role", "add", "locks")
        etcdctl(servers, "role", "grant-permission", "locks", "readwrite", "/pgfence/", "/pgfence0")
        etcdctl(servers, "user", "grant-role", "pgfence", "locks")
        etcdctl(servers, "auth", "enable")
        yield servers


def url(servers: Etcd, login: str) -> str:
    return servers.url().replace("://", f"://{login}")


def test_user_and_password_are_taken_from_the_url(etcd: Etcd, place: str) -> None:
    named = url(etcd, "pgfence:s%40cret%2F%25@")
    inspector = coordinators.inspector(named)
    assert inspector.holder(place) is None
    waiting = Patience(inf, monotonic)
    claim = coordinators.claimant(named).claim(place, "request root", 30.0, waiting)
    assert inspector.holder(place) == Holder("request root", claim.token)
    claim.release()
    assert inspector.holder(place) is None
    inspector.close()


def test_r42_session_goes_on_when_other_users_are_changed(etcd: Etcd, place: str) -> None:
    """That ends every token: whoever has one logs in again."""
    named = url(etcd, "pgfence:s%40cret%2F%25@")
    waiting = Patience(inf, monotonic)
    claim = coordinators.claimant(named).claim(place, "request root", 30.0, waiting)
    assert isinstance(claim, Session)
    inspector = coordinators.inspector(named)
    assert inspector.holder(place) is not None
    administer(etcd, "user", "add", "another:password")
    administer(etcd, "user", "delete", "another")
    claim.doubt()
    wait_until(lambda: claim.standing() is Standing.HELD, "its session was confirmed")
    assert inspector.holder(place) == Holder("request root", claim.token)
    claim.release()
    assert inspector.holder(place) is None
    inspector.close()


@pytest.mark.parametrize(
    ("login", "why"),
    [("", "user name is empty"), ("pgfence:wrong@", "invalid user ID or password")],
)
def test_who_may_not_log_in_is_told_so(etcd: Etcd, place: str, login: str, why: str) -> None:
    inspector = coordinators.inspector(url(etcd, login))
    with pytest.raises(LockServiceError, match=why) as caught:
        inspector.holder(place)
    inspector.close()
    assert "etcd refuses" in str(caught.value)
    assert "wrong" not in str(caught.value)
    with pytest.raises(LockServiceError, match=why):
        coordinators.claimant(url(etcd, login)).claim(
            place, "request root", 30.0, Patience(monotonic(), monotonic)
        )
