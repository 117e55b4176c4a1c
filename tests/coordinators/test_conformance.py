"""What every lock service must do for pgfence, whichever it is (R34 to R37, R40 to R43)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import inf

import pytest

from pgfence import coordinators
from pgfence.clock import monotonic
from pgfence.coordinators.protocol import Claim, Holder, Inspector, Patience, Standing, directory
from pgfence.errors import AcquireTimeoutError, ClaimLostError, LockServiceError
from tests.coordinators.servers import Servers
from tests.coordinators.way import ways_to
from tests.support import PATIENCE, wait_until

#: Seconds that a session lasts: long where it must not end, short where the test waits for it.
LONG, SHORT = 60.0, 4.0


class Workers:
    """Workers that ask a lock service, in threads of this process."""

    def __init__(self, url: str, pool: ThreadPoolExecutor) -> None:
        self._claimant = coordinators.claimant(url)
        self._pool = pool
        self.claims: list[Claim] = []

    def claim(
        self, place: str, value: str, *, ttl: float = LONG, patience: Patience | None = None
    ) -> Claim:
        claim = self._claimant.claim(place, value, ttl, patience or Patience(inf, monotonic))
        self.claims.append(claim)
        return claim

    def begin(
        self, place: str, value: str, *, ttl: float = LONG, patience: Patience | None = None
    ) -> Future[Claim]:
        """The same, in a thread."""
        return self._pool.submit(self.claim, place, value, ttl=ttl, patience=patience)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as started:
        yield started


@contextmanager
def workers_at(url: str, pool: ThreadPoolExecutor) -> Iterator[Workers]:
    workers = Workers(url, pool)
    try:
        yield workers
    finally:
        for claim in workers.claims:
            claim.release()


@pytest.fixture
def workers(servers: Servers, pool: ThreadPoolExecutor) -> Iterator[Workers]:
    with workers_at(servers.url(), pool) as found:
        yield found


@pytest.fixture
def inspector(servers: Servers) -> Iterator[Inspector]:
    found = coordinators.inspector(servers.url())
    yield found
    found.close()


def look(inspector: Inspector, place: str) -> Holder | None:
    """Who holds; asked again, as the registry does, where no answer came within a second or two."""
    found: list[Holder | None] = []

    def answers() -> bool:
        with suppress(LockServiceError):
            found.append(inspector.holder(place))
        return bool(found)

    wait_until(answers, "the lock service answers")
    return found[0]


def stands(claim: Claim, standing: Standing) -> Callable[[], bool]:
    return lambda: claim.standing() is standing


def test_r37_the_registry_sees_who_holds_and_with_which_token(
    workers: Workers, inspector: Inspector, place: str
) -> None:
    assert look(inspector, place) is None
    claim = workers.claim(place, "request-1 root")
    assert look(inspector, place) == Holder("request-1 root", claim.token)
    claim.release()
    assert look(inspector, place) is None


def test_r37_each_holder_has_a_higher_token_or_the_service_says_that_it_has_none(
    workers: Workers, inspector: Inspector, place: str
) -> None:
    tokens = []
    for number in range(5):
        claim = workers.claim(place, f"request-{number} root")
        tokens.append(claim.token)
        claim.release()
    if inspector.capabilities.rising_tokens:
        assert tokens == sorted(set(tokens))
        assert tokens[0] > 0
    else:
        assert tokens == [0] * 5


def test_r37_what_a_stranger_has_put_there_is_a_holder_that_nobody_asked_for(
    servers: Servers, inspector: Inspector, place: str
) -> None:
    servers.put_stranger(place)
    holder = inspector.holder(place)
    assert holder is not None
    assert "root" not in holder.claim
    servers.delete(place)
    assert inspector.holder(place) is None


def test_r40_only_a_service_with_linearizable_reads_claims_rising_tokens(
    servers: Servers,
) -> None:
    found = coordinators.capabilities(servers.name)
    assert found.name == servers.name
    assert found.rising_tokens == found.linearizable


def test_r36_the_resource_has_one_holder_at_a_time(
    workers: Workers, inspector: Inspector, place: str, pool: ThreadPoolExecutor
) -> None:
    alone = threading.Lock()
    tokens = []

    def work(worker: int) -> None:
        for number in range(4):
            claim = workers.claim(place, f"request-{worker}-{number} root")
            assert alone.acquire(blocking=False), "somebody else holds it too"
            seen = look(inspector, place)
            assert seen == Holder(f"request-{worker}-{number} root", claim.token)
            tokens.append(claim.token)
            alone.release()
            claim.release()

    for done in [pool.submit(work, worker) for worker in range(4)]:
        done.result()
    if inspector.capabilities.rising_tokens:
        assert tokens == sorted(set(tokens))


def test_r36_a_resource_within_the_name_of_another_one_is_another_one(
    workers: Workers, inspector: Inspector, place: str
) -> None:
    outer = f"{place}/a"
    for name in ("a", "a/b", "a.b", ".", "..", "a%2Fb"):
        workers.claim(directory("billing", f"{outer} {name}"), f"{name} root")
    for name in ("a", "a/b", "a.b", ".", "..", "a%2Fb"):
        holder = look(inspector, directory("billing", f"{outer} {name}"))
        assert holder is not None
        assert holder.claim == f"{name} root"


def test_r34_same_request_asked_twice_holds_once(
    workers: Workers, servers: Servers, place: str
) -> None:
    first = workers.claim(place, "request-1 root")
    with pytest.raises(AcquireTimeoutError):
        workers.claim(place, "request-1 root", patience=Patience(monotonic() + 0.1, monotonic))
    assert first.standing() is Standing.HELD
    second = workers.begin(place, "request-1 root")
    if servers.waiters_have_keys:
        wait_until(lambda: len(servers.keys(place)) == 2, "the second one waits for the first")
    assert not second.done()
    first.release()
    assert second.result().standing() is Standing.HELD
    assert servers.keys(place) == ["request-1 root"]


def test_r36_whoever_gives_up_waiting_leaves_no_key_behind(
    workers: Workers, servers: Servers, place: str
) -> None:
    workers.claim(place, "holder root")
    with pytest.raises(AcquireTimeoutError):
        workers.claim(place, "waiter root", patience=Patience(monotonic() + 0.1, monotonic))
    patience = Patience(inf, monotonic)
    waiting = workers.begin(place, "interrupted root", patience=patience)
    if servers.waiters_have_keys:
        wait_until(lambda: len(servers.keys(place)) == 2, "the waiter stands in line")
    patience.give_up()
    with pytest.raises(AcquireTimeoutError):
        waiting.result()
    assert servers.keys(place) == ["holder root"]


def test_r36_patience_of_nothing_looks_once(workers: Workers, place: str) -> None:
    claim = workers.claim(place, "first root", patience=Patience(monotonic(), monotonic))
    assert claim.standing() is Standing.HELD


@pytest.mark.rule("R36", "R37")
def test_r36_waiter_whose_session_ended_while_it_waited_gets_nothing(
    workers: Workers, servers: Servers, place: str
) -> None:
    """etcd-io/etcd#11456: it was told that it held the lock."""
    if not servers.waiters_have_keys:
        pytest.skip(f"who waits at {servers.name} has no session that could end")
    holder = workers.claim(place, "holder root")
    waiting = workers.begin(place, "waiter root")
    wait_until(lambda: len(servers.keys(place)) == 2, "the waiter stands in line")
    servers.end_session_of("waiter root")
    holder.release()
    with pytest.raises(ClaimLostError):
        waiting.result()
    assert servers.keys(place) == []


@pytest.mark.rule("R36", "R37")
@pytest.mark.parametrize("ttl", [SHORT, LONG])
def test_r36_waiter_that_waits_for_longer_than_its_session_lasts_holds_a_live_one(
    workers: Workers, inspector: Inspector, place: str, ttl: float
) -> None:
    """etcd-io/etcd#9921: a waiter with a session of 5 s got the lock after 20 s."""
    holder = workers.claim(place, "holder root")
    waiting = workers.begin(place, "waiter root", ttl=ttl)
    until = monotonic() + (1.5 * SHORT if ttl == SHORT else 3.0)
    wait_until(lambda: monotonic() > until, "a short session would be over by now")
    assert not waiting.done()
    holder.release()
    claim = waiting.result()
    assert claim.standing() is Standing.HELD
    assert look(inspector, place) == Holder("waiter root", claim.token)


def test_r41_session_that_the_service_has_ended_is_over(
    workers: Workers, servers: Servers, place: str
) -> None:
    claim = workers.claim(place, "holder root", ttl=SHORT)
    changed = threading.Event()
    claim.listen(changed.set)
    servers.end_session_of("holder root")
    wait_until(stands(claim, Standing.LOST), "the worker knows")
    assert changed.wait(PATIENCE)


def test_r41_session_whose_key_somebody_deletes_is_over(
    workers: Workers, servers: Servers, place: str
) -> None:
    claim = workers.claim(place, "request-1 root", ttl=6.0)
    servers.delete(place)
    wait_until(stands(claim, Standing.LOST), "the worker knows")
    assert workers.claim(place, "request-2 root").standing() is Standing.HELD


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_service_is_asked_directly_whatever_proxy_the_environment_names(
    servers: Servers, place: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    inspector = coordinators.inspector(servers.url())
    assert inspector.holder(place) is None
    inspector.close()


def test_r34_key_whose_put_was_answered_by_nobody_is_there_once(
    servers: Servers, pool: ThreadPoolExecutor, place: str
) -> None:
    with ways_to(servers) as (url, ways), workers_at(url, pool) as workers:
        for way in ways:
            way.lose_reply_to(servers.putting)
        claim = workers.claim(place, "request-1 root")
        # ZooKeeper's session is in doubt since the connection was cut, until its keeper has asked.
        wait_until(stands(claim, Standing.HELD), "the worker is sure")
        assert servers.keys(place) == ["request-1 root"]


@pytest.mark.rule("R42", "R43")
def test_r42_cut_off_from_the_service_the_worker_doubts_and_then_knows_that_it_is_over(
    servers: Servers, pool: ThreadPoolExecutor, place: str
) -> None:
    with (
        ways_to(servers) as (url, ways),
        workers_at(url, pool) as cut_off,
        workers_at(servers.url(), pool) as others,
    ):
        claim = cut_off.claim(place, "cut off root", ttl=SHORT)
        seen: list[Standing] = []
        claim.listen(lambda: seen.append(claim.standing()))
        for way in ways:
            way.partition()
        successor = others.claim(place, "successor root")
        # Its own clock has told it before the service gave the key to another one.
        assert claim.standing() is Standing.LOST
        wait_until(lambda: seen[-1:] == [Standing.LOST], "its worker is told")
        assert Standing.HELD not in seen
        for way in ways:
            way.heal()
        # redis/redis-py#1031: the release of a past holder leaves the next one's key alone.
        claim.release()
        assert servers.keys(place) == ["successor root"]
        assert successor.standing() is Standing.HELD
        assert claim.standing() is Standing.LOST


@pytest.mark.rule("R42")
def test_r42_doubt_ends_when_the_partition_heals_in_time(
    servers: Servers, pool: ThreadPoolExecutor, place: str
) -> None:
    with ways_to(servers) as (url, ways), workers_at(url, pool) as workers:
        claim = workers.claim(place, "holder root", ttl=15.0)
        for way in ways:
            way.partition()
        wait_until(stands(claim, Standing.UNKNOWN), "the worker doubts")
        for way in ways:
            way.heal()
        wait_until(stands(claim, Standing.HELD), "the worker is sure again")


@pytest.mark.rule("R42")
def test_r42_doubt_ends_in_time_although_a_server_that_came_back_did_not_answer_at_first(
    servers: Servers, pool: ThreadPoolExecutor, place: str
) -> None:
    with ways_to(servers) as (url, ways), workers_at(url, pool) as workers:
        claim = workers.claim(place, "holder root", ttl=15.0)
        before = [way.swallowed for way in ways]
        for way in ways:
            way.partition()
            way.cut()
        wait_until(stands(claim, Standing.UNKNOWN), "the worker doubts")
        wait_until(lambda: [way.swallowed for way in ways] != before, "it asks, and hears nothing")
        for way in ways:
            way.let_new_through()
        wait_until(stands(claim, Standing.HELD), "the worker is sure again")
        assert servers.keys(place) == ["holder root"]


def test_r37_silent_service_is_an_error_and_no_holder(servers: Servers, place: str) -> None:
    with ways_to(servers) as (url, ways):
        inspector = coordinators.inspector(url)
        assert look(inspector, place) is None
        for way in ways:
            way.partition()
        with pytest.raises(LockServiceError):
            inspector.holder(place)
        for way in ways:
            way.heal()
        assert look(inspector, place) is None
        inspector.close()


def test_r36_service_that_was_restarted_has_one_holder_at_most(
    own_servers: Servers, pool: ThreadPoolExecutor, place: str
) -> None:
    with workers_at(own_servers.url(), pool) as workers:
        claim = workers.claim(place, "before root", ttl=30.0)
        own_servers.restart()
        patience = Patience(monotonic() + 1, monotonic)
        waiting = workers.begin(place, "after root", ttl=15.0, patience=patience)
        if isinstance(waiting.exception(), AcquireTimeoutError):
            wait_until(stands(claim, Standing.HELD), "its session is confirmed")
            assert own_servers.keys(place) == ["before root"]
        else:
            assert waiting.result().standing() is Standing.HELD
            wait_until(stands(claim, Standing.LOST), "its session is over")
            assert own_servers.keys(place) == ["after root"]
