"""The one table of verdicts, SQLSTATEs and exceptions."""

from __future__ import annotations

import json
import pickle

import pytest

from pgfence import errors
from pgfence.model.receipt import NOWHERE
from pgfence.model.verdict import CODES, Verdict
from tools import errors_page


def test_each_row_of_the_table_has_the_exception_that_it_names() -> None:
    assert {name: code.exception for name, code in CODES.items()} == {
        name: error.__name__ for name, error in errors.BY_NAME.items()
    }


def test_no_sqlstate_stands_twice() -> None:
    sqlstates = [code.sqlstate for code in CODES.values() if code.sqlstate]
    assert len(sqlstates) == len(set(sqlstates))


def test_exactly_the_sqlstates_of_refusals_give_refused_errors() -> None:
    for name, code in CODES.items():
        is_refusal = (code.sqlstate or "").startswith("PF1")
        assert issubclass(errors.BY_NAME[name], errors.RefusedError) is is_refusal, name


@pytest.mark.parametrize("name", CODES)
def test_an_error_report_becomes_the_exception_of_its_sqlstate(name: str) -> None:
    code = CODES[name]
    error = errors.from_sqlstate(code.sqlstate, "what happened")
    if code.sqlstate is None:
        assert error is None
    else:
        assert type(error) is errors.BY_NAME[name]
        assert "what happened" in str(error)
        assert error.next_step


def test_an_error_report_of_another_class_is_not_ours() -> None:
    assert errors.from_sqlstate("23505", "duplicate key") is None
    assert errors.from_sqlstate(None, "connection lost") is None


def test_a_raised_refusal_brings_its_verdict_along() -> None:
    detail = json.dumps({"error": "STALE_OWNER", "fence_token": 7, "highest_fence": 8})
    error = errors.from_sqlstate("PF111", "a newer owner", detail)
    assert isinstance(error, errors.StaleOwnerError)
    assert (error.verdict.fence_token, error.verdict.highest_fence) == (7, 8)


def test_the_database_s_own_hint_is_the_next_step() -> None:
    error = errors.from_sqlstate("PF304", "no", '{"table": "t"}', "Drop the rule.", "R23")
    assert isinstance(error, errors.UnprotectableError)
    assert (error.detail, error.next_step, error.rule) == ({"table": "t"}, "Drop the rule.", "R23")


@pytest.mark.parametrize("detail", ["", "not json", "[]"])
def test_a_detail_that_is_no_json_object_does_no_harm(detail: str) -> None:
    error = errors.from_sqlstate("PF201", "not admitted", detail)
    assert isinstance(error, errors.NotAdmittedError)
    assert error.detail == {}


def test_a_refusal_that_this_version_does_not_know_is_still_a_refusal() -> None:
    with pytest.raises(errors.RefusedError, match="FROM_THE_FUTURE"):
        Verdict("FROM_THE_FUTURE").require()


@pytest.mark.parametrize("name", ["ACCEPTED", "REPLAYED", "ADVANCED"])
def test_an_accepting_verdict_passes_require(name: str) -> None:
    verdict = Verdict(name)
    assert verdict.require() is verdict


@pytest.mark.parametrize(
    "error",
    [
        errors.StaleOwnerError(Verdict("STALE_OWNER", fence_token=3)),
        errors.LeaseEndedError("late", {"resource": "r"}, "again", "R19"),
        errors.MutationUnknownError("r", "sha256:00", 4, "ab"),
        errors.TokenRefusedError("MALFORMED", "ENVELOPE"),
        errors.AcknowledgedSegmentsLostError("r", (), NOWHERE),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_survives_pickling_with_all_it_knows(error: errors.PgfenceError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_docs_errors_md_is_the_table() -> None:
    written = errors_page.PAGE.read_text(encoding="utf-8")
    assert written == errors_page.page(), "run: python tools/errors_page.py"
