"""Random chains of trust bundles: Python and SQL against a small reference (R31, R32).

The reference does sums with sets of people and knows no signature. It says every rule that a bundle
breaks; the answer must be one of them, or that the bundle follows when there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pgfence.errors import TrustRefusedError
from pgfence.model.bundle import TrustBundle, sign_bundle, verify_next_bundle
from tests import rotation_cases as rotation
from tests.support import Database
from tests.token_cases import (
    END,
    GRANT_KEY,
    NOW,
    SECOND,
    STATUS_KEY,
    UNKNOWN_KEY,
    trust_key,
)

KEYS = [*rotation.PEOPLE[:4], GRANT_KEY, rotation.NEXT_GRANT_KEY, STATUS_KEY]
PURPOSES = ["root"] * 4 + ["grant"] * 2 + ["status"]
#: What a signer may be: a key of the pool, or a stranger.
SIGNERS = [*KEYS, UNKNOWN_KEY]


@dataclass(frozen=True)
class Step:
    """A candidate, and who signs it; numbers are places in KEYS."""

    skip: int
    names_before: bool
    same_audience: bool
    epoch: int
    purposes: dict[int, str]
    threshold: int
    expired: bool
    signers: list[int]
    damaged: int | None

    def bundle(self, before: TrustBundle | None) -> TrustBundle:
        trusted = [trust_key(KEYS[n], purpose) for n, purpose in self.purposes.items()]
        return TrustBundle(
            version=max(1, (before.version if before else 0) + 1 + self.skip),
            audience="billing" if self.same_audience else "payroll",
            keys=tuple(sorted(trusted, key=lambda key: key.kid)),
            lowest_epoch=self.epoch,
            root_threshold=self.threshold,
            issued_at=0,
            expires_at=SECOND if self.expired else END,
            previous=before.digest if before and self.names_before else "",
        )

    def signatures(self, document: str) -> list[str]:
        signatures = [sign_bundle(document, SIGNERS[n]) for n in self.signers]
        if self.damaged is not None and signatures:
            at = self.damaged % len(signatures)
            signatures[at] = signatures[at][:-6] + "000000"
        return signatures


@dataclass(frozen=True)
class Trust:
    """What the reference remembers of a bundle."""

    version: int
    audience: str
    epoch: int
    purposes: dict[int, str]
    threshold: int

    @property
    def roots(self) -> set[int]:
        return {n for n, purpose in self.purposes.items() if purpose == "root"}


def broken_rules(trust: Trust | None, step: Step, bundle: TrustBundle) -> set[str]:
    roots = {n for n, purpose in step.purposes.items() if purpose == "root"}
    signers = set(step.signers)
    rules = {
        "EXPIRED": step.expired,
        "SIGNATURE": len(signers) < len(step.signers)
        or bool(signers - roots - (trust.roots if trust else set()))
        or (step.damaged is not None and bool(signers)),
        "QUORUM": len(signers & roots) < step.threshold,
    }
    if trust is None:
        rules["NOT_FIRST"] = bundle.version != 1
    else:
        rules |= {
            "VERSION": bundle.version != trust.version + 1,
            "PREVIOUS": not step.names_before,
            "AUDIENCE": bundle.audience != trust.audience,
            "EPOCH": step.epoch < trust.epoch,
            "PURPOSE": any(trust.purposes.get(n, p) != p for n, p in step.purposes.items()),
            "OLD_QUORUM": len(signers & trust.roots) < trust.threshold,
        }
    return {rule for rule, broken in rules.items() if broken}


def mostly(good: Any, bad: Any) -> st.SearchStrategy[Any]:
    return st.integers(0, 9).flatmap(lambda n: st.just(bad) if n == 0 else st.just(good))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    chosen = draw(st.sets(st.integers(0, len(KEYS) - 1), min_size=2))
    purposes = {n: PURPOSES[n] for n in sorted(chosen | {0})}
    if draw(mostly(False, True)):
        purposes[max(purposes)] = draw(st.sampled_from(["root", "grant", "status"]))
    roots = sum(purpose == "root" for purpose in purposes.values())
    return Step(
        skip=draw(mostly(0, draw(st.sampled_from([-1, 1])))),
        names_before=draw(mostly(True, False)),
        same_audience=draw(mostly(True, False)),
        epoch=draw(st.integers(1, 3)),
        purposes=purposes,
        threshold=draw(st.integers(1, max(1, min(roots, 3)))),
        expired=draw(mostly(False, True)),
        signers=draw(
            st.one_of(
                st.lists(st.integers(0, 3), unique=True),
                st.lists(st.integers(0, len(SIGNERS) - 1), max_size=4),
            )
        ),
        damaged=draw(mostly(None, 1)),
    )


def python_problem(before: TrustBundle | None, document: str, signatures: list[str]) -> str | None:
    try:
        verify_next_bundle(before, document, signatures, NOW)
    except TrustRefusedError as refused:
        return str(refused.detail["problem"])
    return None


def run(chain: list[Step]) -> Iterator[tuple[str, list[str], str | None]]:
    """Each candidate of a chain with Python's answer, which the reference has confirmed."""
    before: TrustBundle | None = None
    trust: Trust | None = None
    for step in chain:
        bundle = step.bundle(before)
        document, signatures = bundle.document, step.signatures(bundle.document)
        problem = python_problem(before, document, signatures)
        broken = broken_rules(trust, step, bundle)
        assert problem in broken if broken else problem is None
        yield document, signatures, problem
        if problem is None:
            before = bundle
            trust = Trust(
                bundle.version, bundle.audience, step.epoch, step.purposes, step.threshold
            )


@settings(max_examples=300, deadline=None)
@given(st.lists(steps(), min_size=1, max_size=12))
def test_r31_python_answers_as_the_reference_along_random_chains(chain: list[Step]) -> None:
    for _ in run(chain):
        pass


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(steps(), min_size=1, max_size=6))
def test_r31_r32_the_database_answers_as_python_along_random_chains(
    database: Database, chain: list[Step]
) -> None:
    with psycopg.connect(database.dsn()) as conn:
        conn.execute("set role pgfence_owner")
        conn.execute("delete from pgfence.trust_keys")
        conn.execute("delete from pgfence.trust_bundles")
        for document, signatures, problem in run(chain):
            before = in_force(conn)
            try:
                with conn.transaction():
                    conn.execute(
                        "select pgfence.install_trust_bundle(%s, %s)", [document, signatures]
                    )
            except psycopg.Error as error:
                assert error.sqlstate == "PF305"
                assert json.loads(error.diag.message_detail or "")["problem"] == problem
                assert in_force(conn) == before
            else:
                assert problem is None
                assert in_force(conn)[:1] == [document]
        conn.rollback()


def in_force(conn: psycopg.Connection[Any]) -> list[str]:
    rows = conn.execute("select document from pgfence.trust_bundles order by version desc")
    return [document for (document,) in rows.fetchall()]


def test_the_reference_finds_good_chains_and_every_way_to_break_one() -> None:
    """The control of the generator: nothing that it should try is left out."""
    seen: set[str | None] = set()
    longest = 0

    @settings(
        max_examples=500, database=None, derandomize=True, phases=[Phase.generate], deadline=None
    )
    @given(st.lists(steps(), min_size=1, max_size=12))
    def collect(chain: list[Step]) -> None:
        nonlocal longest
        problems = [problem for *_, problem in run(chain)]
        seen.update(problems)
        longest = max(longest, problems.count(None))

    collect()
    assert longest >= 3
    assert seen >= {
        None, "NOT_FIRST", "VERSION", "PREVIOUS", "AUDIENCE", "EPOCH", "PURPOSE", "EXPIRED",
        "SIGNATURE", "OLD_QUORUM", "QUORUM",
    }  # fmt: skip


@pytest.mark.parametrize("rule", ["old quorum", "epoch"])
def test_the_reference_notices_a_rule_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """The control of the reference: without the rule, a chain is found that it refuses."""
    real = verify_next_bundle

    def without(
        before: TrustBundle | None, document: str, signatures: list[str], now_us: int
    ) -> TrustBundle:
        try:
            return real(before, document, signatures, now_us)
        except TrustRefusedError as refused:
            if refused.detail["problem"] == {"old quorum": "OLD_QUORUM", "epoch": "EPOCH"}[rule]:
                return TrustBundle.parse(document)
            raise

    monkeypatch.setattr(f"{__name__}.verify_next_bundle", without)

    @settings(
        max_examples=1000, database=None, derandomize=True, phases=[Phase.generate], deadline=None
    )
    @given(st.lists(steps(), min_size=1, max_size=12))
    def search(chain: list[Step]) -> None:
        for _ in run(chain):
            pass

    with pytest.raises(AssertionError):
        search()
