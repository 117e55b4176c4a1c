"""The same random histories in shadow and enforced: equal verdicts, and equal state (R28).

PGFENCE_SHADOW_HISTORIES says how many pairs are lived, 30 by default, and a third of them with the
registry in another database.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.property.test_against_the_model import ROUNDS, Begin, here, histories
from tests.property.test_elsewhere import elsewhere
from tests.rollout import evidence, shadow
from tests.support import Database, Keys

HISTORIES = int(os.environ.get("PGFENCE_SHADOW_HISTORIES", "30"))


def live_in_pairs(begin: Begin, how_many: int) -> Counter[str]:
    """So many histories, each lived in shadow and enforced, and as many again until some are
    accepted and some refused; how often each verdict came.
    """
    seen: Counter[str] = Counter()
    pairs = 0

    @settings(
        max_examples=how_many,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(histories)
    def live(steps: list[tuple[str, int, int]]) -> None:
        nonlocal pairs
        in_shadow = begin("shadow/")
        in_shadow.live(steps)
        enforced = begin()
        enforced.live(steps)
        assert in_shadow.stream == enforced.stream
        seen.update(enforced.verdicts)
        pairs += 1

    for _ in range(ROUNDS):
        live()
        if seen["ACCEPTED"] and refused(seen):
            break
    print(f"{pairs} histories in shadow and enforced, equal verdicts: {dict(seen.most_common())}")
    return seen


def refused(seen: Counter[str]) -> int:
    """How many verdicts were refusals."""
    return seen.total() - seen["ACCEPTED"] - seen["REPLAYED"] - seen["ADVANCED"]


@pytest.mark.timeout(7200)
def test_r28_shadow_and_enforce_give_the_same_verdicts(database: Database, keys: Keys) -> None:
    shadow(database, "shadow/")
    seen = live_in_pairs(here(database, keys), HISTORIES)
    assert seen["ACCEPTED"] > 0
    assert refused(seen)
    assert evidence(database) != []


@pytest.mark.timeout(7200)
def test_r28_so_they_do_with_the_registry_in_another_database(
    database: Database, registry_database: Database, keys: Keys
) -> None:
    for each in (database, registry_database):
        shadow(each, "shadow/")
    seen = live_in_pairs(elsewhere(database, registry_database, keys), max(1, HISTORIES // 3))
    assert seen["ACCEPTED"] > 0
    assert refused(seen)
    assert evidence(database) != []
