"""Each rule of the contract is named by a test: in its name (`test_r8_…`) or by the mark `rule`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
#: R48 to R50, effects beyond the database, are not built.
RULES = frozenset({*range(1, 48), *range(51, 55)})


def named_rules(sources: Iterable[str]) -> set[int]:
    """The rules that the tests in these modules say they prove."""
    return {
        rule for source in sources for node in ast.walk(ast.parse(source)) for rule in _of(node)
    }


def _of(node: ast.AST) -> Iterator[int]:
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
        yield from map(int, re.findall(r"(?<![a-z0-9])r(\d+)(?![a-z0-9])", node.name))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.rule":
        yield from (int(ast.literal_eval(argument)[1:]) for argument in node.args)


def test_every_rule_of_the_contract_is_named_by_a_test() -> None:
    named = named_rules(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    assert sorted(RULES - named) == []
    assert sorted(named - RULES) == []


@pytest.mark.parametrize(
    "source",
    [
        "def test_r11_r47_a_sentence(): pass",
        "@pytest.mark.rule('R11', 'R47')\ndef test_a_sentence(): pass",
        "pytestmark = [pytest.mark.rule('R47'), pytest.mark.rule('R11')]",
    ],
)
def test_a_name_and_a_mark_name_rules(source: str) -> None:
    assert named_rules([source]) == {11, 47}


@pytest.mark.parametrize(
    "source",
    [
        "def test_that_names_no_rule(): pass",
        "def r11_helper(): pass",
        "def test_for11_and_r11x(): pass",
        "# test_r11_commented_out, pytest.mark.rule('R11')",
    ],
)
def test_control_nothing_else_names_a_rule(source: str) -> None:
    assert named_rules([source]) == set()
