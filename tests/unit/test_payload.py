"""The payload's text: the same value gives the same bytes (R12)."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from enum import StrEnum
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgfence.errors import PayloadError
from pgfence.model.payload import payload_digest, payload_text

_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).filter(lambda value: not isinstance(value, str))


def _shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shuffled(value[key]) for key in reversed(value)}
    return [_shuffled(item) for item in value] if isinstance(value, list) else value


@given(_json)
def test_r12_the_order_of_keys_does_not_change_the_text(value: Any) -> None:
    assert payload_text(_shuffled(value)) == payload_text(value)


@given(_json)
def test_r12_the_text_says_the_value_in_ascii_without_white_space(value: Any) -> None:
    text = payload_text(value)
    assert text.isascii()
    assert json.loads(text) == value
    assert text == payload_text(json.loads(text))


def test_r12_a_known_value_has_a_known_text() -> None:
    value = {"page": 1, "b": [True, None, 1.5], "a": "é"}
    assert payload_text(value) == '{"a":"\\u00e9","b":[true,null,1.5],"page":1}'
    assert payload_digest("{}") == (
        "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    )


class _Word(StrEnum):
    A = "a"


def test_a_str_is_passed_on_unchanged() -> None:
    assert payload_text(' {"b":1, "a" : "é"} ') == ' {"b":1, "a" : "é"} '
    assert payload_text("") == ""
    assert type(payload_text(_Word.A)) is str


def _nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


_endless: dict[str, Any] = {}
_endless["a"] = [_endless]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (nan, "payload is nan"),
        ({"a": [1, inf]}, r"payload\['a'\]\[1\] is inf"),
        ({1: "a"}, "keys must be str"),
        ({"d": date(2026, 7, 19)}, r"payload\['d'\] is a date"),
        (Decimal(1), "payload is a Decimal"),
        (b"x", "payload is a bytes"),
        ({"s": {1}}, "is a set"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
    ],
    ids=repr,
)
def test_what_has_no_text_is_refused_and_named(value: object, named: str) -> None:
    with pytest.raises(PayloadError, match=named):
        payload_text(value)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (10**5000, "a number that is too long"),
        ({"n": [-(10**5000)]}, "a number that is too long"),
        ({10**5000: 1}, "a number that is too long"),
        (_nested(100_000), "nested too deep"),
        (_endless, "contains itself"),
    ],
    ids=["int", "int inside", "int as key", "deep", "endless"],
)
def test_what_python_does_not_write_is_refused_like_the_rest(value: object, named: str) -> None:
    with pytest.raises(PayloadError, match=named):
        payload_text(value)
