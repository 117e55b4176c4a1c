"""Trust bundles in Python (R31, R32). The database: tests/sql/test_tokens_sql.py."""

from __future__ import annotations

import dataclasses
from hashlib import sha256

import pytest

from pgfence.errors import InvalidArgumentError, TrustRefusedError
from pgfence.model import bundle as bundle_module
from pgfence.model.bundle import TrustBundle, follow_chain, verify_next_bundle
from tests import rotation_cases as rotation
from tests import token_cases as cases


@pytest.mark.parametrize("case", cases.bundle_cases(), ids=lambda case: case.name)
def test_r31_first_bundle_gets_the_answer_of_the_table(case: cases.BundleCase) -> None:
    if case.problem is None:
        bundle = verify_next_bundle(None, case.document, case.signatures, cases.NOW)
        assert bundle.document == case.document
        assert bundle.digest == sha256(case.document.encode()).hexdigest()
        return
    with pytest.raises(TrustRefusedError) as caught:
        verify_next_bundle(None, case.document, case.signatures, cases.NOW)
    assert caught.value.detail == {"problem": case.problem}


@pytest.mark.parametrize("case", rotation.rotation_cases(), ids=lambda case: case.name)
def test_r31_next_bundle_gets_the_answer_of_the_table(case: rotation.Case) -> None:
    if case.problem is None:
        bundle = verify_next_bundle(case.before, case.document, case.signatures, cases.NOW)
        assert bundle.document == case.document
        return
    with pytest.raises(TrustRefusedError) as caught:
        verify_next_bundle(case.before, case.document, case.signatures, cases.NOW)
    assert caught.value.detail == {"problem": case.problem}


def test_r31_the_table_has_every_problem_and_each_name_once() -> None:
    table = rotation.rotation_cases()
    assert len({case.name for case in table}) == len(table) >= 40
    assert {case.problem for case in table} - {None} == set(bundle_module._PROBLEMS)


def test_r33_a_chain_is_followed_link_by_link_also_past_what_has_expired() -> None:
    first = dataclasses.replace(rotation.FIRST, issued_at=0, expires_at=1)
    second = rotation.after(
        rotation.with_bob(0, 9), previous=first.digest, issued_at=2, expires_at=3
    )
    third = rotation.after(second, keys=rotation.keys(grants=()), expires_at=cases.END, issued_at=4)
    links = [
        (bundle.document, rotation.signed(bundle.document, rotation.ALICE, rotation.BOB))
        for bundle in (second, third)
    ]
    assert follow_chain(first, []) == first
    assert follow_chain(first, links) == third
    for broken in (links[1:], links[::-1], [links[0], links[0]], [(third.document, links[0][1])]):
        with pytest.raises(TrustRefusedError):
            follow_chain(first, broken)


def test_r31_key_is_found_by_its_kid() -> None:
    golden = cases.GOLDEN["grant"]
    key = cases.BUNDLE.key(golden["kid"])
    assert key is not None
    assert key.public_key.hex() == golden["public_key_hex"]
    assert cases.BUNDLE.key("0" * 16) is None


def test_r31_bundle_that_is_not_good_in_itself_cannot_be_made() -> None:
    for change in (
        {"root_threshold": 4},
        {"keys": cases.BUNDLE.keys[::-1]},
        {"audience": ""},
        {"expires_at": 0},
        {"previous": "x"},
    ):
        with pytest.raises(InvalidArgumentError):
            dataclasses.replace(cases.BUNDLE, **change)
    assert dataclasses.replace(cases.BUNDLE, version=2) != cases.BUNDLE
    assert TrustBundle.parse(cases.BUNDLE.document) == cases.BUNDLE
