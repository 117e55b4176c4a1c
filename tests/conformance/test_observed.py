"""What a worker's metrics say after a lease that had it all."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from pgfence import errors, observe
from tests.conformance.conftest import NOT_POOLED, RESOURCE, Connect
from tests.conformance.test_apply import never, settle
from tests.proxy import proxy_to
from tests.support import Database

pytestmark = NOT_POOLED


def test_verdicts_waits_holds_and_unknown_outcomes_are_counted(
    connect: Connect, served: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr(observe, "_meters", None)
    observe.enable_metrics(registry)
    with proxy_to(served.dsn("worker_a")) as proxy:
        fence = connect(dsn=proxy.dsn)
        with fence.hold(RESOURCE, operation="settle", ttl=60) as lease:
            lease.apply({"page": 1}, settle(1))
            with pytest.raises(errors.SegmentGapError):
                lease.apply({"page": 9}, never, segment=9)
            proxy.lose_reply_to_commit()
            with pytest.raises(errors.MutationUnknownError) as caught:
                lease.apply({"page": 2}, settle(2))
            fence.reconcile(caught.value)
    counted = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }
    assert counted["pgfence_verdicts_total", "ACCEPTED", "", "no"] == 1
    assert counted["pgfence_verdicts_total", "SEGMENT_GAP", "", "no"] == 1
    assert counted["pgfence_mutations_unknown_total",] == 1
    assert counted["pgfence_reconciled_total", "ACCEPTED"] == 1
    assert counted["pgfence_lease_wait_seconds_count",] == 1
    assert counted["pgfence_lease_hold_seconds_count", "RELEASED"] == 1
