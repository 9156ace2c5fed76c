"""Tests of regular expressions in subscriptions."""

from __future__ import annotations

import sys

import pytest

from odradek.broker.coordination.regular_expressions import InvalidExpression
from odradek.broker.groups.consumer.topic_regex_resolver import check_expression, match_topics


@pytest.mark.parametrize("expression", ["[a-", "(?=x)", "(?!x)", "a**", "(", r"\1"])
def test_invalid_regular_expression_is_rejected(expression: str) -> None:
    with pytest.raises(InvalidExpression, match="is not a valid regular expression"):
        check_expression(expression)


def test_regular_expression_without_re2_is_rejected_with_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(InvalidExpression, match="pip install google-re2"):
        check_expression("only-without-re2-.*")


def test_regular_expressions_match_whole_names_in_steps() -> None:
    topics = [f"t{number}" for number in range(1000)]
    steps = list(match_topics(["t1", "t.*9", "(?i)T5", "x"], topics))
    assert len(steps) > 4
    found = steps[-1]
    assert found["t1"] == {"t1"}
    assert found["t.*9"] == {each for each in topics if each.endswith("9")}
    assert (found["(?i)T5"], found["x"]) == ({"t5"}, set())


def test_more_regular_expressions_take_more_steps() -> None:
    names = [f"t{number}" for number in range(150)]
    steps = sum(1 for _ in match_topics((f"t{number}.*" for number in range(300)), names))
    assert steps >= 300
