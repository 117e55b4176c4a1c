"""A connection that is open and says nothing: no error ever comes, so time has to tell."""

from __future__ import annotations

import pytest

from pgfence import errors
from tests.conformance.conftest import RESOURCE, SETTLE, Connect
from tests.conformance.test_hold import wait_for_move
from tests.proxy import proxy_to
from tests.support import PATIENCE, Database
from tests.workers import end_lease, in_background


def test_r42_a_renewal_without_answer_is_doubted_and_asked_again_on_a_new_connection(
    connect: Connect, registered: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "pgfence.client")
    with (
        proxy_to(registered.dsn("worker_a")) as proxy,
        connect(registry_dsn=proxy.dsn).hold(RESOURCE, operation="settle", ttl=9) as lease,
    ):
        proxy.freeze()
        lease.renew_now()
        wait_for_move(caplog, "RENEWING -> OWNERSHIP_UNKNOWN")
        wait_for_move(caplog, "OWNERSHIP_UNKNOWN -> HELD")
        receipt = lease.apply({"page": 1}, lambda execute: execute(SETTLE, 1, "settled"))
        assert receipt.fence_token == lease.fence_token


def test_r42_r43_a_segment_that_is_not_answered_ends_with_the_lease(
    connect: Connect, served: Database, registered: Database
) -> None:
    def lose() -> None:
        assert sent.wait(PATIENCE)
        end_lease(registered, lease.grant.lease)
        lease.renew_now()

    with (
        proxy_to(served.dsn("worker_a")) as proxy,
        connect(dsn=proxy.dsn).hold(RESOURCE, operation="settle", ttl=30) as lease,
    ):
        lease.advance()
        sent = proxy.freeze_latest()
        losing = in_background(lose)
        with pytest.raises(errors.LeaseEndedError, match="before the work function ran"):
            lease.apply({"page": 1}, lambda execute: execute(SETTLE, 1, "settled"))
        losing.result(PATIENCE)
