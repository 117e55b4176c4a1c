"""What is counted and logged, and that it costs nothing until somebody asks."""

from __future__ import annotations

import builtins
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pgfence import observe
from pgfence.errors import PgfenceError
from pgfence.model.lease import Ownership
from pgfence.model.verdict import Verdict

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
Value = Callable[..., float | None]


@pytest.fixture
def value(monkeypatch: pytest.MonkeyPatch) -> Value:
    """Counting is on; the value of a metric."""
    monkeypatch.setattr(observe, "_meters", None)
    registry = CollectorRegistry()
    observe.enable_metrics(registry, handover_budget=2.0)

    def get(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    get.registry = registry  # type: ignore[attr-defined]
    return get


def test_nothing_is_imported_until_somebody_asks() -> None:
    program = "import pgfence, pgfence.cli, sys; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(observe, "_meters", None)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(PgfenceError, match=r"pip install 'pgfence\[metrics\]'"):
        observe.enable_metrics()
    assert not observe.counting()


def test_what_happens_unwatched_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "_meters", None)
    observe.verdict(Verdict("ACCEPTED"))
    observe.acquired("x", 1, 0.5)
    observe.moved("lease-1", Ownership(), Ownership().confirmed(0, 0, 9), 0)
    observe.reconciled("ACCEPTED")
    observe.unknown_now([])
    observe.signed()
    observe.ended_overdue_session()
    observe.handovers([1.0])


def test_verdicts_are_counted_by_kind_those_of_shadow_by_what_they_would_be(value: Value) -> None:
    observe.verdict(Verdict("ACCEPTED"))
    observe.verdict(Verdict("NOT_HELD", reason="EXPIRED"))
    observe.verdict(Verdict("WOULD_REFUSE", would_refuse="SEGMENT_GAP"))
    name = "pgfence_verdicts_total"
    assert value(name, verdict="ACCEPTED", reason="", in_shadow="no") == 1
    assert value(name, verdict="NOT_HELD", reason="EXPIRED", in_shadow="no") == 1
    assert value(name, verdict="SEGMENT_GAP", reason="", in_shadow="yes") == 1


def test_renewals_and_the_end_of_a_lease_are_counted(value: Value) -> None:
    requested = Ownership()
    held = requested.confirmed(0, 0, 9)
    renewing = held.renewing(3)
    doubted = renewing.doubted(4)
    again = doubted.confirmed(5, 5, 9)
    over = again.ended(8, "SUPERSEDED")
    for before, after in zip(
        [requested, held, renewing, doubted, again],
        [held, renewing, doubted, again, over],
        strict=True,
    ):
        observe.moved("lease-1", before, after, 8.0)
    assert value("pgfence_lease_renewals_total", result="confirmed") == 1
    assert value("pgfence_lease_renewals_total", result="doubted") == 1
    assert value("pgfence_lease_hold_seconds_sum", reason="SUPERSEDED") == 8.0


def test_handovers_are_held_against_the_budget(value: Value) -> None:
    observe.handovers([0.5, 1.9, 2.1])
    assert value("pgfence_handover_seconds_count") == 3
    assert value("pgfence_handovers_over_budget_total") == 1
    assert value("pgfence_handover_budget_seconds") == 2.0


def test_a_refusal_is_a_line_of_json_and_an_accepted_segment_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "pgfence.events"):
        observe.verdict(Verdict("ACCEPTED", resource="invoice/1"))
        observe.verdict(Verdict("STALE_OWNER", resource="invoice/1", fence_token=7))
    (record,) = caplog.records
    said = json.loads(record.getMessage())
    assert (said["event"], said["verdict"], said["fence_token"]) == ("verdict", "STALE_OWNER", 7)


def test_the_page_has_every_metric_with_its_labels_and_no_other(value: Value) -> None:
    registry: CollectorRegistry = value.registry  # type: ignore[attr-defined]
    rows = re.findall(r"^\| `(pgfence_\w+)` \| (\w+)(.*?) \|", PAGE.read_text("utf-8"), re.M)
    exposed = re.findall(r"^# TYPE (\w+) (\w+)$", generate_latest(registry).decode(), re.M)
    kinds = [(n, k) for n, k in exposed if not n.endswith("_created")]
    assert sorted((name, kind) for name, kind, _ in rows) == sorted(kinds)
    alerts = set(re.findall(r"pgfence_[a-z_]+", PAGE.read_text("utf-8").split("## Alerts")[1]))
    names = {name for name, *_ in rows}
    assert {name.removesuffix("_count") for name in alerts if name.endswith(
        ("_seconds", "_total", "_count", "_outcomes"))} <= names  # fmt: skip
    for name, _, labels in rows:
        (metric,) = (m for m in registry.collect() if name in (m.name, f"{m.name}_total"))
        collector = registry._names_to_collectors[metric.name]
        assert re.findall(r"`(\w+)`", labels) == list(collector._labelnames)  # type: ignore[attr-defined]
