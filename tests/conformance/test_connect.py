"""connect: what a client checks before it does anything."""

from __future__ import annotations

import os

import pytest

from pgfence import errors
from tests.conformance.conftest import RESOURCE, Connect
from tests.support import Database


def test_a_database_without_pgfence_says_what_to_run(
    connect_unserved: Connect, empty_database: Database, route: str
) -> None:
    empty = empty_database.dsn("worker_a")
    for which in ["dsn", "registry_dsn"] if route == "elsewhere" else ["dsn"]:
        with pytest.raises(errors.SchemaVersionError, match="run `pgfence migrate`"):
            connect_unserved(**{which: empty})


def test_another_schema_version_names_both_and_says_what_to_run(
    connect_unserved: Connect, registered: Database
) -> None:
    registered.connect().execute(
        "create or replace function pgfence.schema_version() returns text language sql"
        " immutable parallel safe set search_path = pg_catalog, pg_temp"
        " as $$ select '9999_future' $$"
    )
    with pytest.raises(
        errors.SchemaVersionError, match="is 9999_future, .*built for 0001_baseline.*migrate"
    ):
        connect_unserved()


def test_a_role_that_may_not_use_pgfence_says_what_to_grant(connect: Connect) -> None:
    with pytest.raises(errors.NoWorkloadError, match="grant pgfence_app") as caught:
        connect("outsider")
    assert "Grant it that group" in (caught.value.next_step or "")


def test_r6_a_role_without_workload_is_told_when_it_asks(
    connect: Connect, registered: Database
) -> None:
    registered.connect("dba").execute("select pgfence.remove_workload('worker_b')")
    with (
        pytest.raises(errors.NoWorkloadError) as caught,
        connect("worker_b").hold(RESOURCE, operation="settle"),
    ):
        pytest.fail("held")
    assert "add_workload" in (caught.value.next_step or "")


def test_r33_a_pinned_bundle_is_compared_and_nothing_is_written(
    connect: Connect, served: Database
) -> None:
    row = served.connect().execute("select digest from pgfence.trust_bundle()").fetchone()
    assert row is not None
    connect(bundle_digest=row[0])
    with pytest.raises(errors.BundleSplitError, match=f"{row[0]}.*{'0' * 64}"):
        connect(bundle_digest="0" * 64)


def test_a_fence_that_was_closed_is_of_no_more_use(connect: Connect) -> None:
    fence = connect()
    fence.close()
    with pytest.raises(errors.HandleClosedError):
        fence.position(RESOURCE)
    with pytest.raises(errors.HandleClosedError), fence.hold(RESOURCE, operation="settle"):
        pytest.fail("held")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_r35_a_forked_child_may_use_neither_fence_nor_lease(connect: Connect) -> None:
    fence = connect()
    with fence.hold(RESOURCE, operation="settle") as lease:
        child = os.fork()
        if child == 0:
            refused = 0
            for use in (
                lambda: fence.position(RESOURCE),
                lambda: lease.apply({}, lambda execute: None),
                lease.release,
            ):
                try:
                    use()
                except errors.ForkedError:
                    refused += 1
                except BaseException:
                    os._exit(100)
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 3
        assert lease.apply({"page": 1}, lambda execute: None).segment_seq == 1
