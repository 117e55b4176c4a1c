"""Trust bundles in Python (R31, R32). The database: tests/sql/test_tokens_sql.py."""

from __future__ import annotations

import dataclasses
from hashlib import sha256

import pytest

from pgfence.errors import InvalidArgumentError, TrustRefusedError
from pgfence.model.bundle import TrustBundle, verify_first_bundle
from tests import token_cases as cases


@pytest.mark.parametrize("case", cases.bundle_cases(), ids=lambda case: case.name)
def test_r31_first_bundle_gets_the_answer_of_the_table(case: cases.BundleCase) -> None:
    if case.problem is None:
        bundle = verify_first_bundle(case.document, case.signatures, cases.NOW)
        assert bundle.document == case.document
        assert bundle.digest == sha256(case.document.encode()).hexdigest()
        return
    with pytest.raises(TrustRefusedError) as caught:
        verify_first_bundle(case.document, case.signatures, cases.NOW)
    assert caught.value.detail == {"problem": case.problem}


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
