"""The same random histories in shadow and enforced: equal verdicts, and equal state (R28).

PGFENCE_SHADOW_HISTORIES says how many pairs are lived, 30 by default.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.property.test_against_the_model import ROLES, History, histories
from tests.rollout import evidence, shadow
from tests.support import Database, Keys
from tests.workers import Worker

HISTORIES = int(os.environ.get("PGFENCE_SHADOW_HISTORIES", "30"))


@pytest.mark.timeout(7200)
def test_r28_shadow_and_enforce_give_the_same_verdicts(database: Database, keys: Keys) -> None:
    workers = {owner: Worker.login(database, keys, role) for owner, role in ROLES.items()}
    owner = database.connect()
    owner.execute("set role pgfence_owner")
    shadow(database, "shadow/")
    seen: Counter[str] = Counter()
    pairs = 0

    @settings(
        max_examples=HISTORIES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(histories)
    def live(steps: list[tuple[str, int, int]]) -> None:
        nonlocal pairs
        lived = []
        for above in ("shadow/", ""):
            history = History(database, keys, workers, owner, above)
            for action, first, second in steps:
                history.take(action, first, second)
            history.compare()
            lived.append(history)
        in_shadow, enforced = lived
        assert in_shadow.stream == enforced.stream
        seen.update(enforced.verdicts)
        pairs += 1

    live()
    print(f"{pairs} histories in shadow and enforced, equal verdicts: {dict(seen.most_common())}")
    assert seen["ACCEPTED"] > 0
    assert seen.total() > seen["ACCEPTED"] + seen["REPLAYED"] + seen["ADVANCED"]
    assert evidence(database) != []
