"""What others may watch: log lines that are JSON, and metrics for Prometheus.

Whatever is worth counting happens in one of the functions below. They cost a comparison, and import
nothing, until `enable_metrics` was called; that takes the extra `pgfence[metrics]`. Log lines go to
the loggers `pgfence.…`. docs/observability.md lists both.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from pgfence.errors import PgfenceError
from pgfence.model.lease import Ownership, State
from pgfence.model.verdict import Verdict

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

#: Seconds: from a notification in the same database to a lease of an hour.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
#: Seconds that a resource may take to change hands, unless somebody says otherwise.
HANDOVER_BUDGET = 5.0
_log = logging.getLogger("pgfence.events")


class _Meters:
    """The metrics, in one place with their names, labels and units."""

    def __init__(self, registry: "CollectorRegistry", budget: float) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        def counter(name: str, says: str, *labels: str) -> Any:
            return Counter(name, says, labels, registry=registry)

        def gauge(name: str, says: str, *labels: str) -> Any:
            return Gauge(name, says, labels, registry=registry)

        def seconds(name: str, says: str, *labels: str) -> Any:
            return Histogram(name, says, labels, registry=registry, buckets=_SECONDS)

        self.verdicts = counter(
            "pgfence_verdicts",
            "Answers of fenced_apply; in shadow those that were let through",
            "verdict", "reason", "in_shadow",
        )  # fmt: skip
        self.waited = seconds(
            "pgfence_lease_wait_seconds", "From asking for a resource to holding it"
        )
        self.held = seconds(
            "pgfence_lease_hold_seconds", "From holding a resource to the end of that", "reason"
        )
        self.renewals = counter(
            "pgfence_lease_renewals", "Renewals: confirmed, doubted (no answer)", "result"
        )
        self.mutations_unknown = counter(
            "pgfence_mutations_unknown", "Segments whose COMMIT was not answered"
        )
        self.reconciled = counter(
            "pgfence_reconciled",
            "What became of unknown segments: proven, answered, or still unresolved",
            "outcome",
        )
        self.unknown = gauge("pgfence_unknown_outcomes", "What is unknown at the last look", "kind")
        self.oldest_unknown = gauge(
            "pgfence_unknown_oldest_seconds", "Age of the oldest unknown; 0 where there is none"
        )
        self.signed = counter("pgfence_grants_signed", "Grants that this process signed")
        self.overdue_sessions = counter(
            "pgfence_overdue_sessions_ended", "Sessions ended for holding up a successor"
        )
        self.handovers = seconds(
            "pgfence_handover_seconds",
            "From the end of a lease that somebody waited for to the next owner's first write",
        )
        self.handovers_over_budget = counter(
            "pgfence_handovers_over_budget", "Handovers that took longer than the budget"
        )
        self.budget = budget
        gauge("pgfence_handover_budget_seconds", "How long a handover may take").set(budget)


_meters: _Meters | None = None


def counting() -> bool:
    """Whether anybody wants numbers, so that it is worth asking the database for them."""
    return _meters is not None


def enable_metrics(
    registry: "CollectorRegistry | None" = None, *, handover_budget: float = HANDOVER_BUDGET
) -> None:
    """Count from now on, in Prometheus' default registry if none is given; again: nothing.

    handover_budget: seconds that a resource may take to change hands.

    Raises `PgfenceError` without the package prometheus-client.
    """
    global _meters
    if _meters is not None:
        return
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise PgfenceError(
            "metrics take the package prometheus-client: pip install 'pgfence[metrics]'"
        ) from error
    _meters = _Meters(registry or REGISTRY, handover_budget)


def serve_metrics(
    port: int, address: str = "127.0.0.1", *, handover_budget: float = HANDOVER_BUDGET
) -> None:
    """Enable them, and answer http://address:port/metrics in a thread of this process."""
    enable_metrics(handover_budget=handover_budget)
    from prometheus_client import start_http_server

    start_http_server(port, address)


def event(log: logging.Logger, name: str, level: int = logging.INFO, **fields: Any) -> None:
    """One log line, as `line` has it."""
    if log.isEnabledFor(level):
        log.log(level, "%s", line(name, **fields))


def line(name: str, **fields: Any) -> str:
    """A JSON object with `time`, `event` and whatever belongs to it."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": time, "event": name} | fields, default=str)


# What happens to a worker


def verdict(answer: Verdict) -> None:
    """`fenced_apply` has answered, and the answer stands."""
    name = answer.would_refuse or answer.verdict
    if _meters is not None:
        shadow = "no" if answer.would_refuse is None else "yes"
        _meters.verdicts.labels(name, answer.reason or "", shadow).inc()
    event(
        _log,
        "verdict",
        logging.DEBUG if answer.accepted else logging.INFO,
        verdict=name,
        reason=answer.reason,
        in_shadow=answer.would_refuse is not None,
        resource=answer.resource,
        fence_token=answer.fence_token,
        segment_seq=answer.segment_seq,
    )


def acquired(resource: str, fence_token: int, waited: float) -> None:
    """A resource is held, after so many seconds of waiting."""
    if _meters is not None:
        _meters.waited.observe(waited)
    event(
        _log,
        "acquired",
        logging.DEBUG,
        resource=resource,
        fence_token=fence_token,
        waited=round(waited, 3),
    )


def moved(lease: str, before: Ownership, after: Ownership, held: float) -> None:
    """A worker believes something else of its lease (R41), which it has held for `held` seconds."""
    if _meters is not None:
        if after.state is State.OWNERSHIP_UNKNOWN:
            _meters.renewals.labels("doubted").inc()
        elif after.state is State.HELD and before.state is not State.REQUESTED:
            _meters.renewals.labels("confirmed").inc()
        elif after.is_final:
            _meters.held.labels(after.reason or "").observe(held)
    event(
        _log,
        "lease",
        logging.DEBUG,
        lease=lease,
        before=before.state,
        after=after.state,
        reason=after.reason,
        held=round(held, 3),
    )


def mutation_unknown(resource: str, operation_root: str, segment_seq: int) -> None:
    """A COMMIT was not answered (R44)."""
    if _meters is not None:
        _meters.mutations_unknown.inc()
    event(
        _log,
        "mutation unknown",
        logging.ERROR,
        resource=resource,
        operation_root=operation_root,
        segment_seq=segment_seq,
    )


def reconciled(outcome: str) -> None:
    """It was asked what became of an unknown: how it was settled, or UNRESOLVED (R45)."""
    if _meters is not None:
        _meters.reconciled.labels(outcome).inc()


# What whoever watches the database finds


class _Aged(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def age_ms(self) -> int: ...


def unknown_now(unknown: Sequence[_Aged]) -> None:
    """What is unknown now."""
    if _meters is not None:
        for kind in ("UNANSWERED_COMMIT", "EXPIRED_LEASE"):
            _meters.unknown.labels(kind).set(sum(one.kind == kind for one in unknown))
        _meters.oldest_unknown.set(max((one.age_ms for one in unknown), default=0) / 1000)


def signed() -> None:
    """This process signed a grant."""
    if _meters is not None:
        _meters.signed.inc()


def ended_overdue_session() -> None:
    """This process ended a session that held up a successor (R20)."""
    if _meters is not None:
        _meters.overdue_sessions.inc()


def handovers(seconds: Iterable[float]) -> None:
    """Handovers that were completed."""
    if _meters is not None:
        for one in seconds:
            _meters.handovers.observe(one)
            if one > _meters.budget:
                _meters.handovers_over_budget.inc()
