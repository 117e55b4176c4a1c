"""Acquiring where the registry is elsewhere, against scripted replies (R13)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pgfence import errors
from pgfence.client import acquiring, proofs, protocol
from pgfence.client.database import Pool
from pgfence.model.grant import Grant, operation_root
from tests.unit.test_protocol import Script, answer

GRANT = Grant(
    audience="billing",
    resource="invoice/1",
    owner="worker-a",
    request_id="req-1",
    lease="lease-1",
    operation_class="settle",
    operation_root=operation_root("invoice/1", "settle", "req-1", ""),
    continues_root="",
    fence_token=1,
    backend="postgres",
    backend_revision=1,
    policy_generation=1,
    issuer="registry",
    issuer_epoch=1,
    issued_at=1,
    ttl_ms=9000,
    status_until=1,
)


def test_r13_a_first_proof_that_nobody_signs_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller sees an exception of pgfence's, and not the protocol's own report."""
    signing = [answer("SIGNING", look_again_ms=500)]
    script = Script([[answer("HELD", remaining_ms=9000)], signing], *[[signing]] * 6)
    monkeypatch.setattr(proofs, "monotonic", script.clock)
    held = protocol.Answer.from_row(answer("HELD", token="v4.public.x"), 0.0)
    steps = acquiring._proven(cast(Any, None), held, GRANT)
    with pytest.raises(errors.AcquireTimeoutError, match=r"invoice/1 .* signed the status proof"):
        script.run(steps)
    assert script.now == GRANT.ttl_ms / 3000


def test_a_long_lease_waits_no_longer_than_others_for_a_connection() -> None:
    pool = Pool(lambda: cast(Any, SimpleNamespace()))
    assert [pool.session(seconds).connect_timeout for seconds in (3.0, 20.0)] == [3.0, 10.0]
