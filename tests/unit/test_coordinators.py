"""Coordinators by their names: what is refused before anything is asked."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import ExitStack

import pytest

from pgfence import coordinators
from pgfence.clock import monotonic
from pgfence.coordinators import etcd, zookeeper
from pgfence.coordinators.protocol import Standing, directory
from pgfence.coordinators.session import Session
from pgfence.errors import InvalidArgumentError, LockServiceError
from pgfence.registry.witness import Witness
from tests.support import PATIENCE, wait_until
from tests.workers import in_background


@pytest.mark.parametrize(
    ("url", "module", "library", "extra"),
    [
        ("etcd://localhost:1", "etcd", "httpx", "pgfence[etcd]"),
        ("zookeeper://localhost:1", "zookeeper", "kazoo", "pgfence[zookeeper]"),
        ("redis://localhost:1", "redis", "redis", "pgfence[redis]"),
    ],
)
def test_missing_client_library_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, library: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, f"pgfence.coordinators.{module}", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    for reach in (coordinators.claimant, coordinators.inspector):
        with pytest.raises(LockServiceError, match="pip install") as caught:
            reach(url)
        assert extra in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "consul://localhost",
        "postgres://registry-host/registry",
        "etcd",
        "etcd://",
        "etcd://:2379",
        "etcd://host/path",
        "etcd://host:port",
        "etcd://user:secret@host:port",
        "etcd://[::1",
        "etcd://host:2379?ca=authority.pem",  # without TLS it would mean nothing
        "etcds://host:2379?ca=/nowhere/authority.pem",
        "etcds://host:2379?authority=authority.pem",
        "zookeeper://",
        "zookeeper://host:port",
        "zookeeper://host:2181/chroot",
        "zookeeper://user:secret@host:2181",
        "redis://h:x",
        "redis://:secret@h:x",
        "redis://:secret@h:1?no_such_option=1",
    ],
)
def test_url_of_no_coordinator_is_refused_before_anything_is_asked(url: str) -> None:
    for reach in (coordinators.claimant, coordinators.inspector):
        with pytest.raises(InvalidArgumentError) as caught:
            reach(url)
        assert "secret" not in str(caught.value)


def test_host_without_a_port_has_the_usual_one() -> None:
    assert etcd.Gateway("etcd://one,[::1]:7,two")._members == [
        "http://one:2379", "http://[::1]:7", "http://two:2379",
    ]  # fmt: skip
    assert zookeeper._hosts("zookeeper://one,[::1]:7") == "one:2181,[::1]:7"


def test_password_is_in_no_error_of_etcd_that_does_not_answer() -> None:
    with pytest.raises(LockServiceError, match=r"127\.0\.0\.1:1") as caught:
        coordinators.inspector("etcd://user:secret@127.0.0.1:1").holder("/pgfence/billing/x")
    assert "secret" not in str(caught.value)


def test_r37_two_lock_services_of_one_kind_are_refused() -> None:
    """Members of one cluster that were each given as a URL, of which only one would be asked."""
    members = [coordinators.inspector(f"etcd://etcd-{number}:2379") for number in (1, 2)]
    with pytest.raises(InvalidArgumentError, match="one kind") as caught:
        Witness(members)
    assert "in one URL" in str(caught.value.next_step)


def test_session_of_any_length_is_kept() -> None:
    class Kept(Session):
        def _prolong(self) -> float | None:
            return self.ttl

    session = Kept(2.0**40)
    session.begin(monotonic())
    session.doubt()
    wait_until(lambda: session.standing() is Standing.HELD, "it was asked for and confirmed")
    session.stop()
    session._keeper.join()


def test_session_that_cannot_be_kept_says_so_once_and_asks_ever_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Until it was answered: what fails then is news."""
    waits: list[float] = []

    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return True

    class Failing(Session):
        answers = [False] * 6 + [True, False, False]

        def _prolong(self) -> float | None:
            if not self.answers:
                return None
            if self.answers.pop(0):
                return self.ttl
            raise LockServiceError("cut")

    session = Failing(600.0)
    session._awake = Impatient()
    session.begin(monotonic())
    session._keeper.join(PATIENCE)
    assert waits == [200.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 200.0, 0.1, 0.2]
    said = [record.message for record in caplog.records]
    assert said.count("keeping the session alive failed: cut") == 2


@pytest.mark.parametrize("error", [RuntimeError("it has been closed"), LockServiceError("cut")])
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "not stopped"])
def test_session_that_is_stopped_while_it_asks_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    stopped: bool,
) -> None:
    """What it asks with is closed then, of which httpx makes a bare RuntimeError."""
    asking, closed = threading.Event(), threading.Event()
    unhandled: list[object] = []
    monkeypatch.setattr(threading, "excepthook", unhandled.append)

    class Asking(Session):
        def _prolong(self) -> float | None:
            asking.set()
            assert closed.wait(PATIENCE)
            raise error

    session = Asking(600.0)
    session.begin(monotonic())
    session.doubt()
    assert asking.wait(PATIENCE)
    caplog.clear()
    if stopped:
        session.stop()
    closed.set()
    if not stopped:
        wait_until(lambda: bool(unhandled or caplog.records), "it says so")
        session.stop()
    session._keeper.join(PATIENCE)
    assert not session._keeper.is_alive()
    assert bool(unhandled or caplog.records) is not stopped


def test_postgres_needs_no_looking_at() -> None:
    assert coordinators.claimant("postgres").capabilities.name == "postgres"
    with pytest.raises(InvalidArgumentError):
        coordinators.inspector("postgres")


def test_each_resource_has_a_directory_of_its_own() -> None:
    assert directory("billing", "invoice-batch/2026-07-19") == (
        "/pgfence/billing/invoice-batch%2F2026-07-19"
    )
    names = ["a", "a/b", "a%2Fb", ".", "..", "%2E", "a.b"]
    found = {directory("billing", name) for name in names}
    assert len(found) == len(names)
    assert all(path.count("/") == 3 and "." not in path for path in found)


@pytest.mark.parametrize(
    "says",
    [
        '{"error":"SAYS","message":"SAYS","code":CODE}',  # 3.4, 3.5
        '{"code":CODE,"message":"SAYS"}',  # 3.6
        '{"error":{"grpc_code":CODE,"http_code":404,"message":"SAYS"}}',  # in a stream
        '{"error":{"code":CODE,"message":"SAYS"}}',  # 3.6, in a stream
    ],
)
def test_each_version_of_etcd_is_understood_when_it_refuses(says: str) -> None:
    lease_is_gone = says.replace("CODE", "5").replace("SAYS", "requested lease not found")
    with pytest.raises(etcd._NoLeaseError, match="requested lease not found"):
        etcd._read(lease_is_gone)
    with pytest.raises(LockServiceError, match="no leader") as caught:
        etcd._read(says.replace("CODE", "14").replace("SAYS", "no leader"))
    assert not isinstance(caught.value, etcd._NoLeaseError)


@pytest.mark.parametrize(
    "says", ["", "404 page not found", "[]", "null", '"text"', "{}", '{"status":"ok"}']
)
def test_what_is_no_answer_of_etcd_leads_to_the_next_member(says: str) -> None:
    with pytest.raises(LockServiceError, match="no answer of etcd"):
        etcd._read(says)


def test_r42_server_that_takes_no_connection_is_left_for_another_one_in_time() -> None:
    """kazoo would try to connect for as long as the session lasts: ten minutes here."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(2):  # what waits to be accepted; the next one hears nothing
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        connection = zookeeper.Connection("zookeeper://localhost:1", ttl=2.0)
        handler = connection._client.handler
        connecting = in_background(
            lambda: handler.create_connection(full.getsockname(), timeout=600)
        )
        assert isinstance(connecting.exception(PATIENCE), OSError)
