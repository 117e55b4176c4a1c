"""In shadow the client goes on where it would raise, and says so in its log (R28)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from pgfence import errors
from tests.conformance.conftest import RESOURCE, Connect, states
from tests.conformance.drivers import Lease
from tests.conformance.test_apply import settle
from tests.rollout import enforce, evidence, shadow
from tests.support import Database


@pytest.fixture
def in_shadow(served: Database, registered: Database) -> Database:
    """The guarded database, in shadow as its registry is."""
    owner = served.connect("billing_owner")
    owner.execute("select pgfence.unprotect('invoices')")
    shadow(served, "invoice-batch/")
    if registered is not served:
        shadow(registered, "invoice-batch/")
    owner.execute("select pgfence.protect('invoices', 'invoice-batch/{batch}')")
    return served


def test_r28_refused_segment_is_let_through_with_a_warning_and_its_number_stays(
    connect: Connect, in_shadow: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        lease.apply(1, settle(1))
        with caplog.at_level(logging.WARNING, "pgfence.client"):
            receipt = lease.apply(2, settle(2), segment=7)
        assert (receipt.would_refuse, receipt.digest) == ("SEGMENT_GAP", "")
        assert "in shadow, so let through: SEGMENT_GAP" in caplog.text
        assert lease.apply(3, settle(3)).segment_seq == 2
    assert [states(in_shadow)[i] for i in (1, 2, 3)] == ["settled"] * 3
    assert [e.verdict for e in evidence(in_shadow)] == ["SEGMENT_GAP", "NOT_ADMITTED"]


def test_r28_worker_whose_lease_is_over_goes_on_until_it_is_enforced(
    connect: Connect, in_shadow: Database, end: Callable[[Lease], str]
) -> None:
    with connect().hold(RESOURCE, operation="settle", ttl=6) as lease:
        lease.apply(1, settle(1))
        refusal = end(lease)
        for number in (2, 3):  # the second time the client knows that it is over
            receipt = lease.apply(number, settle(number))
            assert receipt.would_refuse == refusal
        enforce(in_shadow, RESOURCE)
        with pytest.raises(errors.RefusedError) as caught:
            lease.apply(4, settle(4))
        assert caught.value.verdict.verdict == refusal
    assert [states(in_shadow)[i] for i in (1, 2, 3, 4)] == ["settled"] * 3 + ["open"]


def test_r28_what_was_acknowledged_and_lost_is_a_warning(
    connect: Connect, in_shadow: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with connect().hold(RESOURCE, operation="settle") as lease:
        kept = lease.apply(1, settle(1))
    lost = replace(kept, segment_seq=2, digest="cd" * 32)
    with connect().hold(RESOURCE, operation="settle", acknowledged=[kept, lost]) as lease:
        lease.apply(2, settle(2))
    assert f"in shadow, so let through: {RESOURCE}: acknowledged and lost" in caplog.text
    assert states(in_shadow)[2] == "settled"
