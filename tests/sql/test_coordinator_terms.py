"""What SQL decides about a lock service: terms, tokens and marks (R35, R37, R40, R52, R53)."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.support import PATIENCE, Database, Keys, sign_pending
from tests.workers import Worker, as_owner, end_lease, fence_row, grant_of

RESOURCE = "invoice-batch/2026-07-19"
_REQUEST = """
    select * from pgfence_registry.request(%(id)s, %(resource)s, 'settle',
        pgfence.operation_root(%(resource)s, 'settle', %(id)s, ''), 600000, '', %(coordinator)s)
"""


class Registry:
    """A registry process as SQL sees it, with a lock service that says what the test says."""

    def __init__(self, database: Database) -> None:
        self.conn = database.connect("registry")

    def waiting(self) -> dict[str, Any]:
        """What the process is to look for: workload, claim, coordinator, term, mark of each."""
        rows = self.conn.execute(
            "select request_id, workload, claim, coordinator, term, mark"
            " from pgfence_registry.requests_to_inspect()"
        )
        return {request_id: rest for request_id, *rest in rows.fetchall()}

    def saw(self, request_id: str, token: int, *, mark: int | None = None) -> str:
        """Report the key of a request that waits to be seen; mark: as it was before the look."""
        workload, _, _, term, known = self.waiting()[request_id]
        row = self.conn.execute(
            "select pgfence_registry.record_token(%s, %s, %s, %s, %s)",
            [workload, request_id, term, token, known if mark is None else mark],
        ).fetchone()
        assert row is not None
        return str(row[0])

    def refuse(self, lease: str) -> bool:
        row = self.conn.execute("select pgfence_registry.refuse_signature(%s)", [lease]).fetchone()
        assert row is not None
        return bool(row[0])


def switch(database: Database, to: str, *, rising: bool = True, mints: bool = False) -> Any:
    return Worker(database, None, database.connect("dba")).call(  # type: ignore[arg-type]
        "select * from pgfence_registry.switch_coordinator(%s, %s, %s, 'for a test')",
        [to, rising, mints],
    )


def ask(worker: Worker, request_id: str, coordinator: str | None = "etcd") -> Any:
    return worker.call(
        _REQUEST, {"id": request_id, "resource": RESOURCE, "coordinator": coordinator}
    )


def acquire(worker: Worker, registry: Registry, request_id: str, token: int) -> Any:
    """Ask by way of etcd, be seen with a token, be signed."""
    assert ask(worker, request_id).state == "WAIT"
    assert registry.saw(request_id, token) == "RECORDED"
    assert ask(worker, request_id).state == "SIGNING"
    sign_pending(worker.database)
    return ask(worker, request_id)


@pytest.fixture
def worker(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_a")


@pytest.fixture
def rival(database: Database, keys: Keys) -> Worker:
    return Worker.login(database, keys, "worker_b")


@pytest.fixture
def registry(database: Database) -> Registry:
    switch(database, "etcd")
    return Registry(database)


def test_r53_nothing_is_decided_before_a_registry_process_has_seen_the_key(
    worker: Worker, registry: Registry
) -> None:
    answer = ask(worker, "first")
    assert (answer.state, answer.lease) == ("WAIT", None)
    assert "etcd" in answer.reason
    workload, claim, coordinator, term, mark = registry.waiting()["first"]
    root = worker.call("select pgfence.operation_root(%s, 'settle', 'first', '')", [RESOURCE])[0]
    assert (workload, claim, coordinator) == ("worker-a", f"first {root}", "etcd")
    assert (term, mark) == (2, 0)


def test_r1_the_grant_says_which_coordinator_chose_and_with_which_token(
    worker: Worker, registry: Registry
) -> None:
    held = acquire(worker, registry, "first", 1000)
    grant = grant_of(held.token)
    assert (grant.backend, grant.backend_revision, grant.fence_token) == ("etcd", 1000, 1)
    assert registry.waiting() == {}


def test_r36_the_waiter_is_woken_when_its_key_has_been_seen(
    worker: Worker, registry: Registry
) -> None:
    worker.conn.execute(f"listen {ask(worker, 'first').wake_channel}")
    registry.saw("first", 7)
    assert len(list(worker.conn.notifies(timeout=PATIENCE, stop_after=1))) == 1


def test_r37_higher_tokens_get_higher_fences(
    worker: Worker, rival: Worker, registry: Registry
) -> None:
    first = acquire(worker, registry, "first", 1000)
    worker.release(first.lease)
    second = acquire(rival, registry, "second", 1001)
    assert second.fence_token == first.fence_token + 1


def test_r37_token_below_the_mark_pauses_the_resource_and_names_both_numbers(
    worker: Worker, rival: Worker, registry: Registry, database: Database
) -> None:
    held = acquire(worker, registry, "first", 1000)
    rival.conn.execute(f"listen {ask(rival, 'second').wake_channel}")
    assert registry.saw("second", 400) == "FENCE_REGRESSION"
    assert len(list(rival.conn.notifies(timeout=PATIENCE, stop_after=1))) == 1
    with pytest.raises(psycopg.Error) as caught:
        ask(rival, "second")
    assert caught.value.sqlstate == "PF110"
    for said in ("FENCE_REGRESSION", "token 400", "token 1000"):
        assert said in str(caught.value)
    assert worker.apply(held.token, 1).verdict == "PAUSED"
    (entry,) = database.connect("auditor").execute(
        "select detail from pgfence.journal where action = 'REGRESSED'"
    )
    assert (entry[0]["token"], entry[0]["mark"]) == (400, 1000)


def test_r37_the_same_token_for_another_request_is_a_regression_too(
    worker: Worker, rival: Worker, registry: Registry
) -> None:
    worker.release(acquire(worker, registry, "first", 1000).lease)
    ask(rival, "second")
    assert registry.saw("second", 1000) == "FENCE_REGRESSION"


def test_r37_resumed_above_a_fence_low_tokens_are_compared_with_one_another_again(
    worker: Worker, rival: Worker, registry: Registry, database: Database
) -> None:
    old = acquire(worker, registry, "first", 1000)
    ask(rival, "second")
    registry.saw("second", 400)
    dba = Worker(database, worker.keys, database.connect("dba"))
    resumed = dba.call("select * from pgfence.resume(%s, 'etcd was restored', 1000)", [RESOURCE])
    assert resumed.above == 1000
    new = acquire(rival, registry, "third", 401)
    assert new.fence_token == 1001
    assert rival.apply(new.token, 1).verdict == "ACCEPTED"
    assert worker.apply(old.token, 1).verdict == "STALE_OWNER"
    rival.release(new.lease)
    ask(worker, "fourth")
    assert registry.saw("fourth", 401) == "FENCE_REGRESSION"


@pytest.mark.parametrize("above", [-1, None, 2**53, 2**40])
def test_r37_resuming_takes_no_fence_that_nobody_could_write_with(
    worker: Worker, registry: Registry, database: Database, above: int | None
) -> None:
    acquire(worker, registry, "first", 1000)
    ask(worker, "second")
    registry.saw("second", 1)
    with pytest.raises(psycopg.Error) as caught:
        database.connect("dba").execute("select pgfence.resume(%s, '', %s)", [RESOURCE, above])
    assert caught.value.sqlstate == "PF301"
    assert fence_row(database, RESOURCE).issued_fence == 1


@pytest.mark.parametrize("meanwhile", [11, 10])
def test_r37_token_that_was_overtaken_while_it_was_read_is_no_regression(
    worker: Worker, rival: Worker, registry: Registry, meanwhile: int
) -> None:
    """One process read the mark 0 and then token 10; another one signed for 11 meanwhile."""
    ask(rival, "slow")
    worker.release(acquire(worker, registry, "quick", meanwhile).lease)
    assert registry.saw("slow", 10, mark=0) == "RECORDED"
    answer = ask(rival, "slow")
    assert (answer.state, answer.reason) == ("WAIT", "its key must be seen again")
    assert "slow" in registry.waiting()


def test_r36_only_the_last_key_that_was_seen_stands_in_the_queue(
    worker: Worker, rival: Worker, registry: Registry
) -> None:
    ask(worker, "died")
    registry.saw("died", 10)
    ask(rival, "alive")
    registry.saw("alive", 11)
    assert ask(rival, "alive").state == "SIGNING"
    assert ask(worker, "died").state == "WAIT"


def test_r53_grant_whose_key_is_gone_before_it_is_signed_ends_unseen(
    worker: Worker, rival: Worker, registry: Registry, database: Database
) -> None:
    ask(worker, "died")
    registry.saw("died", 10)
    decided = ask(worker, "died")
    assert registry.refuse(decided.lease)
    assert not registry.refuse(decided.lease)
    sign_pending(database)
    assert ask(worker, "died").state == "WAIT"
    assert fence_row(database, RESOURCE).current_lease is None
    held = acquire(rival, registry, "alive", 11)
    assert (held.state, held.fence_token) == ("HELD", decided.fence_token + 1)


def test_r53_request_that_is_locked_while_its_key_is_gone_keeps_no_registry_process(
    worker: Worker, registry: Registry
) -> None:
    registry.conn.execute("set lock_timeout = '10s'")
    ask(worker, "died")
    registry.saw("died", 10)
    decided = ask(worker, "died")
    with worker.transaction():
        assert ask(worker, "died").state == "SIGNING"
        assert not registry.refuse(decided.lease)
    assert registry.refuse(decided.lease)
    assert ask(worker, "died").state == "WAIT"


def test_r36_whose_key_was_seen_meanwhile_is_woken_when_a_grant_is_not_signed(
    worker: Worker, rival: Worker, registry: Registry
) -> None:
    ask(worker, "died")
    registry.saw("died", 10)
    decided = ask(worker, "died")
    ask(rival, "alive")
    registry.saw("alive", 11)
    rival.conn.execute(f"listen {ask(rival, 'alive').wake_channel}")
    assert registry.refuse(decided.lease)
    assert len(list(rival.conn.notifies(timeout=PATIENCE, stop_after=1))) == 1
    assert ask(rival, "alive").state == "SIGNING"


def test_r53_signed_grant_is_not_taken_back(worker: Worker, registry: Registry) -> None:
    held = acquire(worker, registry, "first", 10)
    assert not registry.refuse(held.lease)
    assert worker.renew(held.lease).state == "HELD"


def test_r37_grant_that_was_never_signed_raises_no_mark(
    worker: Worker, registry: Registry, database: Database
) -> None:
    ask(worker, "first")
    registry.saw("first", 10)
    decided = ask(worker, "first")
    end_lease(database, decided.lease)
    again = ask(worker, "first")
    assert (again.state, again.fence_token) == ("SIGNING", decided.fence_token + 1)
    sign_pending(database)
    assert ask(worker, "first").state == "HELD"


def test_r37_lease_is_not_prolonged_once_another_key_was_seen_to_hold(
    worker: Worker, rival: Worker, registry: Registry, database: Database
) -> None:
    held = acquire(worker, registry, "first", 10)
    ask(rival, "second")
    assert worker.renew(held.lease).state == "HELD"
    registry.saw("second", 11)
    renewed = worker.renew(held.lease)
    assert (renewed.state, renewed.remaining_ms) == ("EXPIRED", 0)
    assert "another session" in renewed.reason
    # It is not cut short either: the successor waits for its end (R35).
    assert ask(rival, "second").reason == "the resource is held"
    end_lease(database, held.lease)
    assert ask(rival, "second").state == "SIGNING"


@pytest.mark.parametrize("gone", ["alive_until = clock_timestamp()", "state = 'WITHDRAWN'"])
def test_r37_lease_is_prolonged_where_who_had_the_other_key_waits_no_more(
    worker: Worker, rival: Worker, registry: Registry, database: Database, gone: str
) -> None:
    held = acquire(worker, registry, "first", 10)
    ask(rival, "second")
    registry.saw("second", 11)
    assert worker.renew(held.lease).state == "EXPIRED"
    as_owner(database, f"update pgfence_registry.requests set {gone} where request_id = 'second'")
    assert worker.renew(held.lease).state == "HELD"


def test_r37_lease_of_an_earlier_coordinator_is_prolonged_whoever_waits(
    worker: Worker, rival: Worker, registry: Registry, database: Database
) -> None:
    held = acquire(worker, registry, "first", 10)
    switch(database, "zookeeper")
    ask(rival, "second", "zookeeper")
    registry.saw("second", 5)
    assert ask(rival, "second", "zookeeper").reason == "the resource is held"
    assert worker.renew(held.lease).state == "HELD"


def test_r37_fences_rise_through_every_change_of_coordinator(
    worker: Worker, registry: Registry, database: Database
) -> None:
    fences: list[int] = []
    for number, coordinator in enumerate(["etcd", "zookeeper", "postgres", "etcd", "redis"]):
        if number:
            rising = coordinator != "redis"
            above = switch(database, coordinator, rising=rising, mints=not rising).above
            assert above == fences[-1]
        request_id = f"request-{number}"
        ask(worker, request_id, coordinator)
        if coordinator != "postgres":
            assert registry.saw(request_id, 0 if coordinator == "redis" else 7) == "RECORDED"
            ask(worker, request_id, coordinator)
        sign_pending(database)
        held = ask(worker, request_id, coordinator)
        assert grant_of(held.token).backend == coordinator
        fences.append(held.fence_token)
        worker.release(held.lease)
    assert fences == [1, 2, 3, 4, 5]


def test_r40_coordinator_without_rising_tokens_is_refused_unless_the_registry_mints(
    worker: Worker, registry: Registry, database: Database
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        switch(database, "redis", rising=False)
    assert caught.value.sqlstate == "PF301"
    assert "--registry-mints" in (caught.value.diag.message_hint or "")
    switch(database, "redis", rising=False, mints=True)
    for number in (1, 2):
        ask(worker, f"request-{number}", "redis")
        assert registry.saw(f"request-{number}", 0) == "RECORDED"
        ask(worker, f"request-{number}", "redis")
        sign_pending(database)
        held = ask(worker, f"request-{number}", "redis")
        grant = grant_of(held.token)
        assert grant.backend_revision == grant.fence_token == number
        worker.release(held.lease)


@pytest.mark.parametrize("coordinator", ["postgres", "zookeeper", None])
def test_r37_request_by_way_of_another_coordinator_is_told_which_one_it_is(
    worker: Worker, registry: Registry, coordinator: str | None
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        ask(worker, "first", coordinator)
    assert caught.value.sqlstate == "PF309"
    assert json.loads(caught.value.diag.message_detail or "")["coordinator"] == "etcd"
    assert registry.waiting() == {}


def test_r34_grant_is_given_again_also_after_the_coordinator_has_changed(
    worker: Worker, registry: Registry, database: Database
) -> None:
    held = acquire(worker, registry, "first", 10)
    switch(database, "postgres")
    assert ask(worker, "first", "etcd").token == held.token


def test_r37_waiter_of_before_is_seen_again_by_the_new_coordinator(
    worker: Worker, registry: Registry, database: Database
) -> None:
    ask(worker, "first")
    registry.saw("first", 10)
    switch(database, "zookeeper")
    assert registry.waiting() == {}
    assert ask(worker, "first", "zookeeper").state == "WAIT"
    assert registry.waiting()["first"][2] == "zookeeper"


def test_r37_what_a_process_saw_before_the_change_does_not_count(
    worker: Worker, registry: Registry, database: Database
) -> None:
    ask(worker, "first")
    before = registry.waiting()["first"]
    switch(database, "zookeeper")
    record = "select pgfence_registry.record_token('worker-a', 'first', %s, 10, 0)"
    for term in (before[3], before[3] + 1):  # it has not asked in the new term
        assert registry.conn.execute(record, [term]).fetchone() == ("LOOK_AGAIN",)
    assert registry.waiting() == {}


def test_r37_token_of_a_request_that_waits_no_more_is_no_regression(
    worker: Worker, registry: Registry, database: Database
) -> None:
    """A second process may have looked at the same key."""
    ask(worker, "first")
    _, _, _, term, _ = registry.waiting()["first"]
    registry.saw("first", 10)
    assert ask(worker, "first").state == "SIGNING"
    sign_pending(database)
    late = registry.conn.execute(
        "select pgfence_registry.record_token('worker-a', 'first', %s, 10, 10)", [term]
    ).fetchone()
    assert late == ("LOOK_AGAIN",)
    assert fence_row(database, RESOURCE).paused_because is None


def test_r37_coordinator_does_not_change_while_the_highest_fence_is_not_known(
    database: Database,
) -> None:
    as_owner(database, "update pgfence.configuration set timeline = 'of another server'")
    with pytest.raises(psycopg.Error) as caught:
        switch(database, "etcd")
    assert caught.value.sqlstate == "PF107"


@pytest.mark.parametrize("held_up", ["request", "fence"])
def test_r53_registry_process_never_waits_for_a_worker(
    worker: Worker, rival: Worker, registry: Registry, database: Database, held_up: str
) -> None:
    """A worker that holds its own request or the resource in an open transaction."""
    first = acquire(worker, registry, "first", 10)
    ask(rival, "second")
    (worker if held_up == "fence" else rival).conn.execute("begin")
    registry.conn.execute("set lock_timeout = '1s'")
    if held_up == "fence":
        assert worker.apply(first.token, 1).verdict == "ACCEPTED"
        assert registry.saw("second", 5) == "LOOK_AGAIN"
    else:
        ask(rival, "second")
        assert registry.saw("second", 11) == "LOOK_AGAIN"


def test_r27_only_a_registry_process_says_what_it_saw(worker: Worker, registry: Registry) -> None:
    ask(worker, "first")
    for call in (
        "pgfence_registry.record_token('worker-a', 'first', 2, 10, 0)",
        "pgfence_registry.requests_to_inspect()",
        "pgfence_registry.refuse_signature('lease')",
        "pgfence_registry.switch_coordinator('etcd', true)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.call(f"select {call}")


def test_r40_only_an_owner_changes_the_coordinator(registry: Registry) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        registry.conn.execute("select pgfence_registry.switch_coordinator('etcd', true)")


@pytest.mark.parametrize(
    "call",
    [
        "record_token(null, 'r', 2, 1, 0)",
        "record_token('w', null, 2, 1, 0)",
        "record_token('w', 'r', null, 1, 0)",
        "record_token('w', 'r', 2, null, 0)",
        "record_token('w', 'r', 2, -1, 0)",
        "record_token('w', 'r', 2, 9007199254740992, 0)",
        "record_token('w', 'r', 2, 1, null)",
        "refuse_signature(null)",
        "record_signature(null, 'token')",
        "record_signature('lease', null)",
        "record_proof(null, 'message', 'token')",
        "record_proof('lease', null, 'token')",
        "record_proof('lease', 'message', null)",
    ],
)
def test_r53_a_registry_process_that_says_nothing_gets_a_clear_error(
    registry: Registry, call: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        registry.conn.execute(f"select pgfence_registry.{call}")
    assert caught.value.sqlstate == "PF301"


@pytest.mark.parametrize(
    "arguments",
    ["null, true", "'two words', true", "'x', null", "'x', true, null", "'x', true, true, null"],
)
def test_r37_a_coordinator_without_a_name_is_a_clear_error(
    database: Database, arguments: str
) -> None:
    with pytest.raises(psycopg.Error) as caught:
        database.connect("dba").execute(f"select pgfence_registry.switch_coordinator({arguments})")
    assert caught.value.sqlstate == "PF301"
